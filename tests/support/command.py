"""Runs the real command, each call in a process of its own, in a folder of its own, with scripted providers."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

__all__ = ["CATALOGUE", "Done", "Regate", "wait_until"]

ROOT: Final = Path(__file__).resolve().parents[2]
_SECONDS: Final = 60
"""A command takes one or two; a busy machine many more."""

CATALOGUE: Final = """
[[provider]]
identifier = "house"
kind = "scripted"
trust_zone = "local"
script = "house.toml"
[[provider]]
identifier = "cloud"
kind = "scripted"
trust_zone = "external_global"
script = "cloud.toml"
[[provider]]
identifier = "asker"
kind = "scripted"
trust_zone = "local"
script = "asker.toml"
[[provider]]
identifier = "fragile"
kind = "scripted"
trust_zone = "local"
script = "fragile.toml"
[[provider]]
identifier = "plain"
kind = "scripted"
trust_zone = "local"
script = "plain.toml"
[[provider]]
identifier = "slow"
kind = "scripted"
trust_zone = "local"
script = "slow.toml"
[[configuration]]
identifier = "support"
provider = "house"
model = "m"
system_prompt = "You answer."
[[configuration]]
identifier = "movable"
provider = "house"
model = "m"
[[configuration]]
identifier = "outside"
provider = "cloud"
model = "m"
[[configuration]]
identifier = "asker"
provider = "asker"
model = "m"
[[configuration]]
identifier = "fragile"
provider = "fragile"
model = "m"
[[configuration]]
identifier = "plain"
provider = "plain"
model = "m"
[[configuration]]
identifier = "slow"
provider = "slow"
model = "m"
[[snippet]]
identifier = "secret"
label = "Secret"
text = "marker-of-a-snippet"
data_class = "secret_adjacent"
[[skill]]
identifier = "refunds"
name = "Refunds"
body = "marker-of-a-skill"
"""

_HOUSE: Final = """
record = "house.jsonl"
[[reply]]
text = "marker-of-a-reply"
tool_calls = [
  { id = "c1", name = "refund_order", arguments = { order = 7 } },
  { id = "c2", name = "set_label", arguments = { order = 7, label = "marker-of-an-argument" } },
  { id = "c3", name = "lookup_order", arguments = { order = 7 } },
]
usage = { input_tokens = 10, output_tokens = 5 }
[[reply]]
text = "marker-of-an-answer \\u001b[31m[bold]"
"""
SCRIPTS: Final[Mapping[str, str]] = {
    "house": _HOUSE,
    "cloud": _HOUSE.replace("house.jsonl", "cloud.jsonl"),
    "asker": """
[[reply]]
tool_calls = [{ id = "a1", name = "ask_person", arguments = { question = "marker-of-a-question" } }]
[[reply]]
text = "thanks"
""",
    "fragile": """
[[reply]]
tool_calls = [{ id = "f1", name = "fragile_write", arguments = {} }]
[[reply]]
text = "settled"
""",
    "plain": '[[reply]]\ntext = "hello"\n',
    "slow": '[[reply]]\ntext = "late"\ndelay_ms = 60000\n',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def documents(self) -> list[Any]:
        """The JSON documents on stdout, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, Any]:
        """The error document, which is all that is on stderr."""
        found = json.loads(self.err)
        assert list(found) == ["error"]
        assert isinstance(found["error"], dict)
        return found["error"]


class _Zygote:
    """The process that forks for each call; ended with this one."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.zygote"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()

    def call(
        self, arguments: Sequence[str | bytes], folder: Path, environment: Mapping[str, str], streams: Sequence[Path]
    ) -> int:
        """Run one command; gives its exit code."""
        order = {
            "arguments": [os.fsencode(argument).hex() for argument in arguments],
            "folder": str(folder),
            "environment": dict(environment),
            "streams": [str(stream) for stream in streams],
        }
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with self._lock:
            stdin.write(json.dumps(order) + "\n")
            stdin.flush()
            return int(stdout.readline())

    def end(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait(_SECONDS)


@functools.cache
def _zygote() -> _Zygote:
    made = _Zygote()
    atexit.register(made.end)
    return made


class Regate:
    """`regate` in one folder. Remembers everything that was ever written to a stderr."""

    def __init__(self, folder: Path, **variables: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.stderr: list[str] = []
        self._logs: dict[int, Path] = {}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REGATE_")}
        self.environment = {
            **kept,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}",
            "REGATE_TOOLS": "example_tools,cli_tools",
            "EXAMPLE_TOOLS_LEDGER": str(folder / "ledger.jsonl"),
            **variables,
        }

    def set_up(self) -> None:
        """Write the scripts and apply the catalogue."""
        for name, script in SCRIPTS.items():
            (self.folder / f"{name}.toml").write_text(script)
        (self.folder / "catalogue.toml").write_text(CATALOGUE)
        self("catalog", "apply", "catalogue.toml")

    def __call__(self, *arguments: str | bytes, code: int = 0, input: bytes = b"") -> Done:
        """Run a command to its end and see that it has this exit code."""
        done = self._run(arguments, input)
        assert code == done.code, f"{arguments!r}: {done}"
        return done

    def _run(self, arguments: Sequence[str | bytes], input: bytes = b"") -> Done:
        with tempfile.TemporaryDirectory() as folder:
            streams = [Path(folder) / name for name in ("stdin", "stdout", "stderr")]
            for stream, content in zip(streams, (input, b"", b""), strict=True):
                stream.write_bytes(content)
            ended = _zygote().call(arguments, self.folder, self.environment, streams)
            done = Done(code=ended, out=streams[1].read_text(), err=streams[2].read_text())
        self.stderr.append(done.err)
        assert "Traceback" not in done.err
        return done

    def json(self, *arguments: str | bytes, code: int = 0) -> Any:
        """Run a command with --json and give its one document."""
        return self(*arguments, "--json", code=code).document

    def waiting(self, configuration: str = "support", *options: str) -> dict[str, Any]:
        """Start a run that comes to wait, and give its show document."""
        shown = self.json("run", "-c", configuration, *options, "marker-of-a-prompt")
        assert shown["waiting"] is not None
        assert isinstance(shown, dict)
        return shown

    def fails(self, *arguments: str) -> Done:
        """Run a command that must not succeed, whatever its code."""
        done = self._run(arguments)
        assert done.code != 0
        return done

    @contextmanager
    def process(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Start a command that stays; it is ended at the end, at the latest."""
        with tempfile.NamedTemporaryFile("w+") as stderr:
            started = self._popen(*arguments, stderr=stderr)
            self._logs[started.pid] = Path(stderr.name)
            try:
                yield started
            finally:
                end(started)
                self.stderr.append(self.last_stderr(started))

    def last_stderr(self, started: subprocess.Popen[str]) -> str:
        """Give what a process has written to its stderr until now."""
        return self._logs[started.pid].read_text()

    @contextmanager
    def working(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Start a process that drives runs, and wait until it does."""
        with self.process("up", "--no-web", *arguments) as started:
            assert started.stdout is not None
            assert "regate ready" == first_line(started.stdout).strip()
            yield started

    def _popen(self, *arguments: str, stderr: IO[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "worker.cli", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )


def end(started: subprocess.Popen[str]) -> int:
    """Ask a process to end; one that does not is killed."""
    if started.poll() is None:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
    code = started.wait(20)
    if started.stdout is not None:
        started.stdout.close()
    return code


def first_line(stream: IO[str]) -> str:
    """Read one line, with a deadline; empty when it does not come."""
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(stream.readline()), daemon=True)
    reader.start()
    reader.join(_SECONDS)
    return found[0] if found else ""


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = _SECONDS) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)
