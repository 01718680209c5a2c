"""Named boundaries at which a process sends itself a signal. The product knows nothing of them: real parts are wrapped
from outside, in a process that was started for it.

Every pass of a boundary is noted in the file that `CRASH_TALLY` names, a line each. `CRASH_POINT=send.after:2:KILL`
strikes at the second pass of `send.after`, after a line that begins with `!`. Nothing can be lost of these lines: each
is one write, made before the signal.

    <unit>.before_commit   everything of the transaction is written, nothing is committed
    <unit>.after_commit    it is committed, and nobody has been told
    gate                   a step was judged and computed, and not yet submitted
    send, tool, preview    `before`: its permit is committed, nothing has left; `after`: it is done, and unrecorded
    wake                   `before` and `after` a wake-up is sent
    load.after             a claimed run was read, nothing of its segment is stored
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Self

import sqlalchemy as sa

from codec.vocabulary import WAITING_STATUSES, RunStatus
from worker.adapters.models.registry import ModelRegistry
from worker.adapters.sql import store, writer
from worker.adapters.sql.engine import Database
from worker.adapters.tools.toolbox import PythonToolbox
from worker.bootstrap import LazySignals
from worker.ports.records import Append, Commit, CommitStatus, Due

__all__ = ["POINT", "TALLY", "Strike", "arm", "note_strike", "passed", "struck"]

POINT: Final = "CRASH_POINT"
TALLY: Final = "CRASH_TALLY"
_STRUCK: Final = "!"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A signal at one pass of a boundary, counted from 1."""

    point: str
    number: int
    signal: signal.Signals

    def __str__(self) -> str:
        return f"{self.point}:{self.number}:{self.signal.name.removeprefix('SIG')}"

    @classmethod
    def of(cls, text: str) -> Self:
        """Read what `str` gives."""
        point, number, name = text.split(":")
        return cls(point=point, number=int(number), signal=signal.Signals[f"SIG{name}"])


def passed(tally: Path) -> Counter[str]:
    """Count the passes that a process noted."""
    return Counter(line for line in _lines(tally) if not line.startswith(_STRUCK))


def struck(tally: Path) -> bool:
    """Tell whether a process came to its strike."""
    return any(line.startswith(_STRUCK) for line in _lines(tally))


def note_strike(tally: Path, point: str) -> None:
    """Note a strike that came from outside of the process."""
    _note(tally, f"{_STRUCK}{point}\n")


def _note(tally: Path, text: str) -> None:
    opened = os.open(tally, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(opened, text.encode())
    finally:
        os.close(opened)


def _lines(tally: Path) -> list[str]:
    return tally.read_text().splitlines() if tally.exists() else []


def arm(environment: Mapping[str, str]) -> None:
    """Wrap the boundaries of this process. Once, before anything is opened."""
    if TALLY not in environment:
        return
    strike = Strike.of(environment[POINT]) if POINT in environment else None
    passing = _Passing(Path(environment[TALLY]), strike)
    _watch_units(passing)
    _watch_calls(passing)


class _Passing:
    """Notes passes, and strikes. Called on any thread."""

    def __init__(self, tally: Path, strike: Strike | None) -> None:
        self._tally = tally
        self._strike = strike
        self._passed: Counter[str] = Counter()
        self._guard = threading.Lock()

    def __call__(self, point: str) -> None:
        with self._guard:
            self._passed[point] += 1
            mine = self._strike is not None and (point, self._passed[point]) == (
                self._strike.point,
                self._strike.number,
            )
            _note(self._tally, f"{point}\n{_STRUCK}{point}\n" if mine else f"{point}\n")
        if mine and self._strike is not None:
            os.kill(os.getpid(), self._strike.signal)


# --- units of work: their names are gathered while they run, and told when their transaction commits

_written: ContextVar[tuple[str, ...]] = ContextVar("_written", default=())
_Named = Callable[[Sequence[Any], Any], Iterator[str]]


def _watch_units(passing: _Passing) -> None:
    @functools.partial(sa.event.listen, sa.Engine, "begin")
    def _begun(_: sa.Connection) -> None:
        _written.set(())  # what the last transaction here wrote was told, or rolled back

    def fault(when: str) -> None:
        for name in _written.get():
            passing(f"{name}.{when}")

    opened = Database.open.__func__  # type: ignore[attr-defined]

    def watched(cls: type[Database], url: str, /, **options: Any) -> Database:
        found: Database = opened(cls, url, **options | {"fault": fault})
        return found

    Database.open = classmethod(watched)  # type: ignore[assignment, method-assign]
    for name, named in _UNITS.items():
        _watch_unit(store, name, named)
    _watch_unit(writer, "commit_steps", _steps)
    _watch_unit(writer, "renew_leases", lambda _, found: _if(any(r.held for r in found), "renew"))


def _watch_unit(module: ModuleType, name: str, named: _Named) -> None:
    real = getattr(module, name)

    @functools.wraps(real)
    def unit(connection: sa.Connection, *arguments: Any, **options: Any) -> Any:
        found = real(connection, *arguments, **options)
        _written.set((*_written.get(), *named(arguments, found)))
        return found

    setattr(module, name, unit)


def _if(condition: object, name: str) -> Iterator[str]:
    if condition:
        yield name


_UNITS: Final[dict[str, _Named]] = {
    "create_runs_of_ours": lambda _, found: _if(any(new for _, new in found), "enqueue"),
    "claim_due": lambda _, found: _if(found, "claim"),
    "store_answers": lambda _, found: _if(any(one.problem is None for one in found), "answer"),
    "retry_blocked_run": lambda _, found: _if(found, "resume"),
    "cancel_run": lambda _, found: _if(found, "cancel"),
    "close_run": lambda _, found: _if(found, "close"),
    "give_back_run": lambda _, found: _if(found, "give_back"),
    "take_wakeable": lambda _, found: _if(found, "sweep"),
}


def _steps(arguments: Sequence[Any], found: Sequence[Commit]) -> Iterator[str]:
    for step, commit in zip(arguments[0], found, strict=True):
        if commit.status is CommitStatus.COMMITTED:
            yield _name_of(step)


def _name_of(step: Append) -> str:
    """Name a step by what becomes of its run, or else by what happened."""
    if step.status in WAITING_STATUSES:
        return "suspend"
    if step.due is Due.NEVER:
        return "finish"
    if step.due is Due.DELAY:
        return "park"
    if step.release and step.status is RunStatus.QUEUED:
        return "release"
    return "+".join(entry.kind for entry in step.entries)


# --- calls of the runtime


def _watch_calls(passing: _Passing) -> None:
    _around(passing, ModelRegistry, "send", before="send.before", after="send.after")
    _around(passing, PythonToolbox, "call", before="tool.before", after="tool.after")
    _around(passing, PythonToolbox, "preview", before="preview.before", after="preview.after")
    _around(passing, LazySignals, "wake", before="wake.before", after="wake.after")
    _around(passing, store.SqlRunStore, "stored", after="load.after")
    commit = store.SqlRunStore.commit

    async def judged(self: store.SqlRunStore, step: Append) -> Commit:
        if any('"verdict"' in entry.meta for entry in step.entries):
            passing("gate")
        return await commit(self, step)

    store.SqlRunStore.commit = judged  # type: ignore[method-assign]


def _around(passing: _Passing, owner: type, method: str, *, before: str = "", after: str = "") -> None:
    real = getattr(owner, method)

    @functools.wraps(real)
    async def watched(*arguments: Any, **options: Any) -> Any:
        if before:
            passing(before)
        found = await real(*arguments, **options)
        if after:
            passing(after)
        return found

    setattr(owner, method, watched)
