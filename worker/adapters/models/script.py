"""The file of a scripted provider: read strictly, so that a mistake is told when it is written and not in a run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from codec.errors import CodecError
from codec.text import MAX_TEXT_BYTES, dump_json
from codec.transcript import RawCall, Usage
from codec.vocabulary import FinishReason

__all__ = ["Fail", "Reply", "Script", "ScriptError", "check_script", "read_script"]

_MAX_DELAY_MS: Final = 3_600_000
_PLACE: Final = re.compile(r"(?P<problem>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_LINE: Final = re.compile(r"at line (\d+)")
_STEP: Final = re.compile(r"\[(\d+)\]")


class ScriptError(Exception):
    """A script cannot be used. `problem` names the line or the number of the reply, and no text of either."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"script: {problem}")
        self.problem = problem


class Fail(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fail `times` times with an HTTP status, then answer."""

    status: Annotated[int, msgspec.Meta(ge=300, le=599)]
    times: Annotated[int, msgspec.Meta(ge=0)] = 1


class _Call(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str = ""
    name: str = ""
    arguments: dict[str, Any] | str = ""


class _Usage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    input_tokens: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = 0
    output_tokens: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = 0


class _Reply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: str = ""
    tool_calls: list[_Call] = []
    usage: _Usage = _Usage()
    delay_ms: Annotated[int, msgspec.Meta(ge=0, le=_MAX_DELAY_MS)] = 0
    fail: Fail | None = None
    finish_reason: FinishReason | None = None


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reply: list[_Reply]
    record: str | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One reply, ready to send but for `{run}`; `calls` hold their arguments as text."""

    text: str
    calls: tuple[RawCall, ...]
    usage: Usage
    delay_ms: int
    fail: Fail | None
    finish: FinishReason


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A script: at least one reply; `record` is where sends are noted, an absolute path or None."""

    replies: tuple[Reply, ...]
    record: Path | None


def check_script(path: Path) -> None:
    """Check a script without using it. Errors: `ScriptError`."""
    read_script(path)


def read_script(path: Path) -> Script:
    """Read a script; anything unknown in it is refused. Errors: `ScriptError`."""
    given = _convert(_load(path))
    if not given.reply:
        raise ScriptError("there is no reply")
    if given.record == "":
        raise ScriptError("record names no file")
    return Script(
        replies=tuple(_reply(number, reply) for number, reply in enumerate(given.reply, 1)),
        record=None if given.record is None else path.parent.absolute() / given.record,
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
        if len(raw) > MAX_TEXT_BYTES:
            raise ScriptError(f"longer than {MAX_TEXT_BYTES} bytes")
        return tomllib.loads(raw.decode())
    except OSError as error:
        problem = f"cannot be read ({type(error).__name__})"
    except UnicodeDecodeError:
        problem = "not UTF-8"
    except tomllib.TOMLDecodeError as error:
        line = _LINE.search(str(error))
        problem = f"line {line[1]}: not valid TOML" if line else "not valid TOML: it ends too early"
    except RecursionError:
        problem = "nested too deeply"
    # Outside of the handlers: a decoder's error holds the whole document.
    raise ScriptError(problem)


def _convert(document: dict[str, Any]) -> _File:
    try:
        return msgspec.convert(document, _File)
    except (msgspec.ValidationError, RecursionError) as error:
        problem = _told(str(error))
    raise ScriptError(problem)


def _told(message: str) -> str:
    """Turn the decoder's path, which counts from 0, into words that count from 1 as the contract does."""
    found = _PLACE.fullmatch(message)
    problem, path = (found["problem"], found["path"] or "") if found else (message, "")
    problem = re.sub(r"^Invalid enum value .*", "not one of the words that are possible", problem)
    problem = problem.replace("Object contains unknown field", "unknown key")
    problem = problem.replace("Object missing required field", "missing key")
    words = _STEP.sub(lambda step: f" {int(step[1]) + 1}", path).replace("[...]", "").replace(".", " ").split()
    return f"{' '.join(words)}: {problem}" if words else problem


def _reply(number: int, reply: _Reply) -> Reply:
    calls = tuple(
        RawCall(id=call.id, name=call.name, arguments=_arguments(number, index, call.arguments))
        for index, call in enumerate(reply.tool_calls, 1)
    )
    usual = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
    return Reply(
        text=reply.text,
        calls=calls,
        usage=Usage(input_tokens=reply.usage.input_tokens, output_tokens=reply.usage.output_tokens),
        delay_ms=reply.delay_ms,
        fail=reply.fail,
        finish=reply.finish_reason or usual,
    )


def _arguments(reply: int, call: int, given: dict[str, Any] | str) -> str:
    if isinstance(given, str):
        return given
    try:
        return dump_json(given)
    except CodecError as error:
        problem = error.problem
    raise ScriptError(f"reply {reply} tool_calls {call} arguments: {problem}")
