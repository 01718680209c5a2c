"""What comes back from an OpenAI-compatible server: bytes in, one whole reply out, or `ReplyError`; no I/O.

Strict about types, generous about what is missing: an absent id, name, usage or model is empty, a wrong type is
refused. Reasoning text is not kept: it is unsigned, and nothing needs it later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec

from codec.text import MAX_TEXT_BYTES, clean_text
from codec.transcript import ModelReply, RawCall, Usage
from codec.vocabulary import FailureClass, FinishReason
from worker.adapters.models.registry import failure_of_status

__all__ = ["MAX_BODY_BYTES", "MAX_STREAM_BYTES", "ReplyError", "StreamReader", "WholeReader"]

MAX_BODY_BYTES: Final = 4 * MAX_TEXT_BYTES
"""16 MiB: of a whole answer, of one event, and of all that is kept of a stream. JSON's escapes at most quadruple usual
text."""
MAX_STREAM_BYTES: Final = 16 * MAX_BODY_BYTES
"""256 MiB: a stream spends some 300 bytes on a token of four letters, and nothing of that is kept."""

_FINISH: Final = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    # What servers pass through from engines below them; all four mean that the model said it was done.
    "eos": FinishReason.STOP,
    "eos_token": FinishReason.STOP,
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
}
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_NAME_CHARACTERS: Final = 4096  # far above any tool's; what grows piece by piece without a bound takes square time
_SLOT_COST: Final = 256  # bytes that a call takes here even when it is empty

_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class ReplyError(Exception):
    """An answer cannot be used. Holds the class and nothing of the answer."""

    def __init__(self, failure: FailureClass = FailureClass.INVALID_REPLY) -> None:
        super().__init__(failure.value)
        self.failure = failure


class _Function(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, frozen=True, kw_only=True):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Said(msgspec.Struct, frozen=True, kw_only=True):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int | None = None
    message: _Said | None = None
    delta: _Said | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


def _read(data: bytes | bytearray) -> _Document:
    # json, not msgspec, decodes: some servers split a pair of surrogates over two deltas, which belong together.
    try:
        document = msgspec.convert(json.loads(data), _Document)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        raise ReplyError from None
    if document.error is not None:
        raise ReplyError(_failure_told(document.error))
    return document


def _failure_told(error: object) -> FailureClass:
    """Class an error that came in place of an answer, after the status said that all is well."""
    code = error.get("code") if isinstance(error, dict) else None
    failure = failure_of_status(code) if isinstance(code, int) and 400 <= code < 600 else None
    return FailureClass.SERVER_ERROR if failure is None else failure


class WholeReader:
    """Reads an answer that came as one document, as from a server that does not stream."""

    done = False

    def __init__(self, progress: Callable[[str], None] | None) -> None:
        self._progress = progress
        self._body = bytearray()

    def feed(self, piece: bytes) -> None:
        """Take the next bytes. Errors: `ReplyError` over the bound."""
        if len(self._body) + len(piece) > MAX_BODY_BYTES:
            raise ReplyError
        self._body += piece

    def finish(self, *, lost: bool) -> ModelReply:
        """Give the reply. Errors: `ReplyError`; a document is whole or it is none, so `lost` says nothing here."""
        document = _read(self._body)
        choice = document.choices[0] if document.choices else None
        if choice is None or choice.message is None:
            raise ReplyError
        gathered = _Gathered(self._progress)
        gathered.know(document)
        gathered.say(choice.message, whole=True)
        gathered.finish = choice.finish_reason
        return gathered.reply()


class StreamReader:
    """Reads server-sent events. Complete once a finish reason was seen; `done` is set by the end mark, if one comes."""

    def __init__(self, progress: Callable[[str], None] | None) -> None:
        self.done = False
        self._lines = _Lines()
        self._event: list[bytes] = []
        self._waiting = 0
        self._gathered = _Gathered(progress)
        self._seen = 0

    def feed(self, piece: bytes) -> None:
        """Take the next bytes. Errors: `ReplyError` over a bound or for an event that is not understood."""
        self._seen += len(piece)
        if self._seen > MAX_STREAM_BYTES:
            raise ReplyError
        for line in self._lines.feed(piece):
            self._take(line)
            if self.done:
                return
        if self._lines.waiting + self._waiting > MAX_BODY_BYTES:
            raise ReplyError

    def finish(self, *, lost: bool) -> ModelReply:
        """Give the reply. Errors: `ReplyError` when the stream ended early: `connection` if it may have been `lost`."""
        if self._gathered.finish is None:
            raise ReplyError(FailureClass.CONNECTION if lost and not self.done else FailureClass.INVALID_REPLY)
        return self._gathered.reply()

    def _take(self, line: bytes) -> None:
        """Take one line: comments, names of events, ids and retry times say nothing here."""
        if line.startswith(b"data:"):
            self._event.append(line[5:])
            self._waiting += len(line)
        elif not line and self._event:
            data = b"\n".join(self._event)
            self._event.clear()
            self._waiting = 0
            if data.strip() == b"[DONE]":
                self.done = True
            elif len(data) > MAX_BODY_BYTES:
                raise ReplyError
            else:
                self._gathered.add(_read(data))


class _Lines:
    """Splits at LF, CR and CRLF, wherever pieces end, without copying a long line again and again."""

    def __init__(self) -> None:
        self.waiting = 0
        self._pieces: list[bytes] = []
        self._after_cr = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        if self._after_cr:
            piece = piece.removeprefix(b"\n")
        self._after_cr = piece.endswith(b"\r")
        *lines, rest = _LINE_END.split(piece)
        for line in lines:
            yield b"".join((*self._pieces, line)) if self._pieces else line
            self._pieces.clear()
            self.waiting = 0
        if rest:
            self._pieces.append(rest)
            self.waiting += len(rest)


@dataclass(slots=True, kw_only=True)
class _Slot:
    """One call while it is put together."""

    index: int
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def take(self, call: _Call) -> None:
        function = call.function or _Function()
        self.id = self.id or call.id or ""
        if function.name and function.name != self.name:  # some servers repeat the name in each delta
            self.name += function.name
            if len(self.name) > _NAME_CHARACTERS:
                raise ReplyError
        if function.arguments:
            self.arguments.append(function.arguments)

    def is_over(self, call: _Call) -> bool:
        """Whether `call` begins another one: some servers give each call the same index, or none at all."""
        if call.id and self.id and call.id != self.id:
            return True
        return call.index is None and call.function is not None and bool(call.function.name and self.name)


class _Gathered:
    """What was said so far. Ids of calls stay as they came, empty and repeated ones too."""

    def __init__(self, progress: Callable[[str], None] | None) -> None:
        self.finish: str | None = None
        self._progress = progress
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._slots: list[_Slot] = []
        self._latest: dict[int, _Slot] = {}
        self._model = ""
        self._usage = Usage()
        self._size = 0

    def know(self, document: _Document) -> None:
        """Keep who answered and what it cost; the last count is the one that counts."""
        self._model = document.model or self._model
        if document.usage is not None:
            self._usage = Usage(
                input_tokens=document.usage.prompt_tokens or 0, output_tokens=document.usage.completion_tokens or 0
            )

    def add(self, document: _Document) -> None:
        """Add one event; of several choices, which nobody asked for, the first counts."""
        self.know(document)
        for choice in document.choices or ():
            if choice.index:
                continue
            if choice.delta is not None:
                self.say(choice.delta, whole=False)
            self.finish = choice.finish_reason or self.finish

    def say(self, said: _Said, *, whole: bool) -> None:
        """Add what was said; a call in a whole answer is `whole` too."""
        for text, parts in ((said.content, self._text), (said.refusal, self._refusal)):
            if text:
                self._grow(len(text))
                parts.append(text)
                if self._progress is not None:
                    self._progress(clean_text(text))
        for position, call in enumerate(said.tool_calls or ()):
            self._call(len(self._slots) if whole else position if call.index is None else call.index, call)

    def reply(self) -> ModelReply:
        """Give the reply. A refusal is the text, and filtered; an unknown or missing reason is the worst, `length`."""
        refusal = "".join(self._refusal)
        finish = _FINISH.get(self.finish or "", FinishReason.LENGTH)
        return ModelReply(
            text=refusal or "".join(self._text),
            calls=tuple(
                RawCall(id=slot.id, name=slot.name, arguments="".join(slot.arguments))
                for slot in sorted(self._slots, key=lambda slot: slot.index)
            ),
            usage=self._usage,
            finish=FinishReason.CONTENT_FILTER if refusal else finish,
            model=self._model,
        )

    def _call(self, index: int, call: _Call) -> None:
        slot = self._latest.get(index)
        if slot is None or slot.is_over(call):
            self._grow(_SLOT_COST)
            slot = self._latest[index] = _Slot(index=index)
            self._slots.append(slot)
        name = call.function.name if call.function is not None else None
        arguments = call.function.arguments if call.function is not None else None
        self._grow(len(call.id or "") + len(name or "") + len(arguments or ""))
        slot.take(call)

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > MAX_BODY_BYTES:
            raise ReplyError
