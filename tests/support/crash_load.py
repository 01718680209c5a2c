"""Many runs at once, people who answer whatever they ask, and what must hold of all of them in the end.

Each run reads, makes a write that may happen once and a write that may be repeated, both approved, and ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from codec.vocabulary import FINAL_STATUSES, WAITING_STATUSES, QuestionKind, RunStatus
from tests.support.world import World, call, eventually, reply
from worker.ports.records import RunFilter, RunRow
from worker.ports.runs import StoreError
from worker.runtime.errors import ConflictError, UnavailableError

__all__ = ["ROUNDS", "SEGMENTS", "Load", "people"]

ROUNDS: Final = 4
SEGMENTS: Final = 3
"""Of a run that nobody disturbs: its start, and one for each of two answers."""
_LOOK_S: Final = 0.05
_OPEN: Final = frozenset(RunStatus) - FINAL_STATUSES
_ONCE: Final = "refund_order"
_TROUBLE: Final = (ConflictError, UnavailableError, StoreError, AssertionError)
"""What people meet when the run went on (a world asserts that it waits), or the database is away: they look again."""


@dataclass(slots=True, kw_only=True)
class Load:
    """The runs of a world. `wake` tells workers of runs that have become due."""

    world: World
    wake: Callable[[Sequence[str]], Awaitable[object]]
    uuids: list[str] = field(default_factory=list)
    told_to_run: Counter[str] = field(default_factory=Counter)
    """How often people said of a write that it had not happened, by its run."""
    settled: Counter[str] = field(default_factory=Counter)
    cancelled: set[str] = field(default_factory=set)

    def script(self, delay_ms: int) -> None:
        """Write what the model says, each time after a while."""
        self.world.script(
            reply("", call("echo", "c1", text="x"), delay_ms=delay_ms),
            reply("", call(_ONCE, "c2", order=7), delay_ms=delay_ms),
            reply("", call("set_label", "c3", order=7, label="x"), delay_ms=delay_ms),
            reply("done", delay_ms=delay_ms),
        )

    async def enqueue(self, count: int = 1) -> None:
        """Store runs and tell a worker."""
        for _ in range(count):
            handle = await self.world.runtime.enqueue(self.world.ask(str(len(self.uuids)), snippets=["tone"]))
            self.uuids.append(handle.uuid)
            await self.wake([handle.uuid])

    async def rows(self, statuses: Iterable[RunStatus] = ()) -> list[RunRow]:
        """Give their rows, of these statuses if any are given."""
        mine = set(self.uuids)
        found = await self.world.store.runs(RunFilter(statuses=tuple(statuses)))
        return [row for row in found if row.uuid in mine]

    async def ended(self, seconds: float) -> None:
        """Wait until every run has ended."""

        async def all_ended() -> bool:
            return not await self._rows(_OPEN)

        await eventually(all_ended, "all runs end", seconds=seconds, every=_LOOK_S)

    async def progress(self) -> int:
        """Give how many entries all journals have."""
        return sum(row.seq for row in await self._rows())

    async def _rows(self, statuses: Iterable[RunStatus] = ()) -> list[RunRow]:
        while True:
            with suppress(StoreError):
                return await self.rows(statuses)
            await asyncio.sleep(_LOOK_S)

    async def answer(self) -> None:
        """Look once, and answer whatever is asked."""
        for row in await self.rows(WAITING_STATUSES):
            if row.cause is None and row.question is not None:
                with suppress(*_TROUBLE):
                    await self._say(row)

    async def _say(self, row: RunRow) -> None:
        if row.question_kind is not QuestionKind.OUTCOME:
            await self.world.answer(row.uuid)
        elif any(line["tool"] == _ONCE for line in self.world.executed(row.uuid)):
            await self.world.settle(row.uuid, call="c2", happened="done")
            self.settled[row.uuid] += 1
        else:
            await self.world.settle(row.uuid, call="c2", run=True)
            self.settled[row.uuid] += 1
            self.told_to_run[row.uuid] += 1
        await self.wake([row.uuid])

    # --- what must hold in the end

    async def recoveries(self, row: RunRow) -> int:
        """Count the segments that a run began because another one was lost."""
        entries = await self.world.store.entries(row.uid)
        return sum(msgspec.json.decode(entry.meta).get("cause") == "recovery" for entry in entries)

    async def check(self) -> int:
        """Check every promise; gives how many recoveries there were.

        A segment that was lost may have had one send or one repeatable call in the air: so often, and no oftener, is
        it repeated. The other write happens once, or once for each time that a person said that it had not.
        """
        sends, calls = self._counted()
        total = 0
        for row in await self.rows():
            lost = await self.recoveries(row)
            total += lost
            if row.uuid in self.cancelled and row.status is RunStatus.CANCELLED:
                assert calls[row.uuid, _ONCE] <= 1
                continue
            shown = await self.world.show(row.uuid)
            assert (RunStatus.COMPLETED, "done") == (shown.status, shown.answer), shown
            rounds = [sends[row.uuid, turn] for turn in range(1, ROUNDS + 1)]
            assert min(rounds) == 1 <= max(rounds) <= 1 + lost, (row.uuid, rounds, lost)
            assert sum(rounds) <= ROUNDS + lost, (row.uuid, rounds, lost)
            assert 1 == calls[row.uuid, _ONCE], (row.uuid, "the write", self.told_to_run[row.uuid])
            assert all(1 <= calls[row.uuid, tool] <= 1 + lost for tool in ("echo", "set_label")), row.uuid
        assert set(self.uuids) == {row.uuid for row in await self.rows()}
        self.world.repeated |= {line["key"] for line in self.world.executed() if line["tool"] != _ONCE}
        await self.world.check()
        return total

    async def check_undisturbed(self) -> None:
        """Check that nobody died, as far as any run could tell: nothing at all was repeated."""
        assert 0 == await self.check()
        sends, calls = self._counted()
        assert {1} == set(sends.values()) == set(calls.values())
        assert {SEGMENTS} == {row.attempts for row in await self.rows()}

    def _counted(self) -> tuple[Counter[tuple[str, int]], Counter[tuple[str, str]]]:
        sends = Counter((line["run"], line["round"]) for line in self.world.sent())
        return sends, Counter((line["run"], line["tool"]) for line in self.world.executed())

    async def latest(self) -> float:
        """Give how long the run that is due longest has been due, in seconds."""
        now = await self.world.store.now()
        due = [row.due_at for row in await self.rows(_OPEN) if row.due_at is not None]
        return now - min(due, default=now)


@asynccontextmanager
async def people(load: Load) -> AsyncIterator[None]:
    """Answer what is asked until the end of the block, and a little later."""

    async def answer() -> None:
        while True:
            with suppress(StoreError):  # the database is away
                await load.answer()
            await asyncio.sleep(_LOOK_S)

    answering = asyncio.create_task(answer())
    try:
        yield
    finally:
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering
