"""Somebody dies at a named boundary of a run; whoever comes next goes on, and nothing is lost or done twice.

Every process that takes part is struck: the worker, and the programs that enqueue, approve and resume. A clean run
counts how often each boundary is passed, so none is silently never reached. By default each is struck once on SQLite by
SIGKILL, in one of the programs that pass it, and a sample of them by SIGTERM, by SIGSTOP and on PostgreSQL; with
REGATE_TEST_CRASH=full every pass of every program, by every signal, on both.
"""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.crash_points import Strike, passed
from tests.support.crash_story import SENT, WRITTEN, Case, Stage, open_stage
from tests.support.engines import ENGINES, FULL, engine_url
from tests.support.ledger import Ledger, ledger
from worker.adapters.embedded_valkey import EmbeddedValkey

pytestmark = pytest.mark.crash

ONLY: Final = os.environ.get("REGATE_TEST_CRASH_ONLY", "")
"""Part of the name of a case, such as `tool.after:2:KILL`: nothing else is struck. For who looks into a failure."""
ALL: Final = FULL or bool(ONLY)
SIGNALS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
AT_ONCE: Final = 8
TRANSACTIONS: Final = (
    "claim",
    "run_started",
    "model_failed",
    "model_replied",
    "tool_returned",
    "suspend",
    "run_resumed+decision_given",
    "finish",
)
MET: Final = {
    "worker": {f"{name}.{when}" for name in TRANSACTIONS for when in ("before_commit", "after_commit")}
    | {f"{call}.{when}" for call in ("send", "tool", "preview") for when in ("before", "after")}
    | {"gate", "load.after", SENT, WRITTEN},
    "enqueue": {"enqueue.before_commit", "enqueue.after_commit", "wake.before", "wake.after"},
    "approve": {"answer.before_commit", "answer.after_commit", "wake.before", "wake.after"},
    "resume": {"resume.before_commit", "resume.after_commit", "wake.before", "wake.after"},
}
MET["approve again"] = MET["approve"]
"""What must be met, by role. What else is met, such as a sweep, depends on how long things take."""
MET_IN_A_DRAIN: Final = {"worker": {"release.before_commit", "release.after_commit", "wake.before", "wake.after"}}
Passes = dict[str, dict[str, int]]


class Theatre:
    """Where stories are told side by side: one ledger, one Valkey with a database for each."""

    def __init__(self, folder: Path, kept: Ledger, broker: str) -> None:
        self._folder = folder
        self._template = folder / "template.db"
        self._ledger = kept
        self._broker = broker.removesuffix("?db=0")
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for number in range(AT_ONCE):
            self._free.put_nowait(number)
        self._told = 0

    @asynccontextmanager
    async def stage(self, engine: str, case: Case) -> AsyncIterator[Stage]:
        """Open a stage when there is room for one."""
        number = await self._free.get()
        self._told += 1
        folder = self._folder / f"s{self._told}"
        folder.mkdir()
        try:
            broker = f"{self._broker}?db={number}"
            async with (
                engine_url(engine, folder, self._template) as url,
                open_stage(folder, case, ledger=self._ledger, url=url, broker=broker) as stage,
            ):
                yield stage
        finally:
            self._free.put_nowait(number)


@asynccontextmanager
async def theatre(folder: Path) -> AsyncIterator[Theatre]:
    async with AsyncExitStack() as stack:
        kept = stack.enter_context(ledger())
        broker = stack.enter_context(EmbeddedValkey(folder))
        yield Theatre(folder, kept, broker.url)


async def clean(found: Theatre, engine: str, case: Case, met: dict[str, set[str]]) -> tuple[Passes, int]:
    """Tell the story without a death; gives how often each role passed what it must meet, and the attempts."""
    async with found.stage(engine, case) as stage:
        row = await stage.tell()
        await stage.check(row, row.attempts)
        passes = {role: passed(stage.tally(role)) for role in met}
        passes["worker"] |= {SENT: stage.story.sends.total(), WRITTEN: stage.story.writes.total()}
        # A sweep of the worker's wakes the run too, or comes too late for that.
        passes["worker"] |= {point: 1 for point in ("wake.before", "wake.after") if point in passes["worker"]}
    for role, wanted in met.items():
        assert wanted <= set(passes[role]), (role, wanted - set(passes[role]))
    return {
        role: {point: passes[role][point] for point in sorted(wanted)} for role, wanted in met.items()
    }, row.attempts


async def tell_all(found: Theatre, engine: str, cases: list[Case], attempts: int) -> None:
    """Tell the story of every case, and tell of those that did not end well."""

    async def one(case: Case) -> str:
        async with found.stage(engine, case) as stage:
            try:
                await stage.check(await stage.tell(), attempts)
            except Exception as error:  # noqa: BLE001 - told with the others
                return f"{case} in {stage.folder}: {''.join(traceback.format_exception(error, limit=-3))}"
        return ""

    failed = [told for told in await asyncio.gather(*(one(case) for case in cases)) if told]
    assert not failed, "\n".join([f"{len(failed)} of {len(cases)} on {engine}", *failed])


def chosen(engine: str, passes: Passes, *, release: bool = False) -> list[Case]:
    """Choose what is struck by which signal on an engine: everything, or a sample in which every boundary is."""
    found: list[Case] = []
    every = [(role, point, count) for role, points in passes.items() for point, count in points.items()]
    if not ALL:
        every = one_role_each(every)
    for index, (role, point, count) in enumerate(every):
        for turn, number in enumerate(SIGNALS):
            if number is signal.SIGSTOP and (role != "worker" or release):
                continue  # a program that stands still is one that has not asked yet, or that has asked
            always = (engine, number) == ("sqlite", signal.SIGKILL)
            if ALL or always or index % 8 == turn + 4 * (engine == "sqlite"):
                strikes = range(1, count + 1) if ALL else [1 + index % count]
                found += [
                    Case(role=role, strike=Strike(point=point, number=n, signal=number), release=release)
                    for n in strikes
                ]
    return [case for case in found if ONLY in str(case)]


def one_role_each(every: list[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    """Keep each boundary in one of the roles that pass it, in turn."""
    roles: dict[str, list[tuple[str, str, int]]] = {}
    for one in every:
        roles.setdefault(one[1], []).append(one)
    return [found[index % len(found)] for index, found in enumerate(roles.values())]


@pytest.mark.parametrize("database", ENGINES)
async def test_a_run_survives_a_death_at_every_boundary(tmp_path: Path, database: str) -> None:
    async with theatre(tmp_path) as found:
        passes, attempts = await clean(found, database, Case(), MET)
        drained, same = await clean(found, database, Case(release=True), MET_IN_A_DRAIN)
        assert attempts == same  # a drain is no attempt
        cases = [*chosen(database, passes), *chosen(database, drained, release=True)]
        await tell_all(found, database, cases, attempts)
