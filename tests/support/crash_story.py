"""The run that crash tests tell again and again, and what must hold of it however often somebody dies.

A confidential snippet is forced onto it. Its first send fails and hops to the fallback; a read follows; then a write
that may happen once, which a person approves while the configuration points outside, so that the run is refused,
pointed back and resumed; then a second write and a second approval. Models and the first write are served by a ledger
outside of every process.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from codec.vocabulary import QuestionKind, RunStatus
from tests.support.crash_points import POINT, TALLY, Strike, note_strike, struck
from tests.support.ledger import Ledger, Story
from tests.support.processes import Worker, environment, start, worker_process
from tests.support.world import World, call, open_world, reply
from worker.ports.records import RunFilter, RunRow

__all__ = ["CLIENTS", "LEASE_S", "SENT", "WRITTEN", "Case", "Stage", "document", "open_stage", "replies"]

_ROUNDS: Final = 4
CLIENTS: Final = ("enqueue", "approve", "resume", "approve again")
"""The programs that ask something, in the order of the story; the worker is a role too."""
SENT: Final = "send.received"
WRITTEN: Final = "write.received"
"""Boundaries that only the ledger sees: a request has arrived, and its sender has not heard of it."""
LEASE_S: Final = 2.0
"""Long enough for a busy machine to renew in, so that nobody seems dead who is not."""
_WAIT_S: Final = 60.0


def document(ledger: Ledger, name: str) -> dict[str, Any]:
    """Give the catalogue of a story."""
    house = {"kind": "openai", "base_url": ledger.model_url(name), "trust_zone": "local"}
    spare = {"kind": "scripted", "script": "script.toml"}
    return {
        "provider": [
            {"identifier": "house", **house},
            {"identifier": "spare", "trust_zone": "local", **spare},
            {"identifier": "cloud", "trust_zone": "external_global", **spare},
        ],
        "configuration": [
            {"identifier": "on-call", "provider": "house", "model": "m", "fallbacks": ["backup"]},
            {"identifier": "backup", "provider": "spare", "model": "m2"},
        ],
        "snippet": [{"identifier": "report", "label": "R", "text": "db-7 leaks.", "data_class": "secret_adjacent"}],
        "egress": [{"host": "127.0.0.1", "trust_zone": "local"}],
    }


def replies(url: str) -> list[dict[str, Any]]:
    """Give what the model says; `url` takes the write."""
    return [
        reply("", call("lookup_order", "c1", order=7)),
        reply("", call("post_json", "c2", url=url, body={"title": "db-7"})),
        reply("", call("set_label", "c3", order=7, label="leaks")),
        reply("done"),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Who is struck, and how. Without a strike nobody dies: the clean run."""

    role: str = "worker"
    strike: Strike | None = None
    release: bool = False
    """Whether the worker is asked to drain while its first send is in the air."""

    @property
    def dies(self) -> bool:
        """Whether somebody is lost with what he had in hand; a worker that is asked to end finishes it."""
        if self.strike is None:
            return False
        return self.strike.signal is not signal.SIGTERM or self.release

    def __str__(self) -> str:
        return f"{self.role} {self.strike}{' in a drain' if self.release else ''}"


@dataclass(slots=True, kw_only=True)
class Stage:
    """One installation in which the story is told once."""

    world: World
    story: Story
    case: Case
    env: dict[str, str]
    folder: Path
    stack: AsyncExitStack
    codes: dict[str, int] = field(default_factory=dict)
    settled: int = 0
    """How often a person said what became of the write; each answer begins a segment, which is an attempt."""
    workers: list[Worker] = field(default_factory=list)
    _moved: bool = False
    _later: asyncio.Task[None] | None = None

    def tally(self, role: str) -> Path:
        """Give the file in which a role notes its passes."""
        return self.folder / f"{role}.tally"

    async def tell(self) -> RunRow:
        """Tell the story to its end; whoever is struck is followed by somebody fresh."""
        await self._work("worker")
        self._hook()
        uuid = await self._enqueue()
        async with asyncio.timeout(_WAIT_S):
            while (row := await self.world.row(uuid)).finished_at is None:
                if row.question is not None and row.cause is None and row.status is not RunStatus.RUNNING:
                    await self._answer(row)
                await self._follow()
                await asyncio.sleep(0.02)
        await self._end()
        return row

    # --- the worker

    async def _work(self, role: str) -> None:
        env = self._armed(role)
        process = worker_process(env, module="tests.support.crash_worker", name=role)
        self.workers.append(await self.stack.enter_async_context(process))

    def _hook(self) -> None:
        """Let the ledger strike the worker, or ask it to drain, when a request of its has arrived."""
        strike, first = self.case.strike, self.workers[0]
        if self.case.release:
            self.story.on_send = lambda number: _drain(first) if number == 1 else None
        if strike is None or strike.point not in (SENT, WRITTEN):
            return

        def hook(number: int) -> None:
            if number == strike.number:
                note_strike(self.tally("worker"), strike.point)
                first.signal(strike.signal)

        if strike.point == SENT:
            self.story.on_send = hook
        else:
            self.story.on_write = hook

    async def _follow(self) -> None:
        """Send somebody fresh when the worker is gone, or stands still."""
        if len(self.workers) == 1 and (self.workers[0].returncode is not None or self._stands_still()):
            await self._work("second")
            if self._stands_still():
                self._later = asyncio.create_task(self._go_on_later())

    def _stands_still(self) -> bool:
        strike = self.case.strike
        return strike is not None and strike.signal is signal.SIGSTOP and struck(self.tally("worker"))

    async def _go_on_later(self) -> None:
        # Whoever is stopped inside of a transaction keeps its locks. On SQLite everybody waits for it; PostgreSQL ends
        # its session after five seconds.
        await asyncio.sleep(2 * LEASE_S if self.world.database.dialect == "sqlite" else _WAIT_S)
        self.workers[0].signal(signal.SIGCONT)

    async def _end(self) -> None:
        """Let the first worker go to its end, if it lives, so that whatever it still does is done."""
        if self._later is not None:
            self._later.cancel()
        self.workers[0].signal(signal.SIGCONT)
        asked = self.case.release or (self.case.strike is not None and self.case.strike.signal is signal.SIGTERM)
        if not (asked and self.case.role == "worker"):
            self.workers[0].signal(signal.SIGTERM)
        self.codes["worker"] = await self.workers[0].ended()

    # --- the programs that ask

    async def _enqueue(self) -> str:
        words = ("enqueue", "on-call", "report", "ticket-7")
        if not await self._ask("enqueue", *words):
            await self._ask("enqueue once more", *words)
        [row] = await self.world.store.runs(RunFilter())
        return row.uuid

    async def _answer(self, row: RunRow) -> None:
        shown = await self.world.show(row.uuid)
        if shown.waiting is None or shown.status is RunStatus.RUNNING:
            return  # it went on meanwhile
        if shown.waiting.kind is QuestionKind.OUTCOME:
            await self._settle(row.uuid)
        elif shown.blocked is not None:
            await self.world.change("configuration", "on-call", provider="house")
            await self._ask("resume", "resume", row.uuid)
        elif shown.waiting.answered_by is None:
            first = shown.waiting.calls[0].name == "post_json"
            if first and not self._moved:
                self._moved = True
                await self.world.change("configuration", "on-call", provider="cloud")
            await self._ask("approve" if first else "approve again", "approve", row.uuid)

    async def _settle(self, uuid: str) -> None:
        self.settled += 1
        if self.story.writes:
            await self.world.settle(uuid, call="c2", happened="Ticket 1.")
        else:
            await self.world.settle(uuid, call="c2", run=True)

    async def _ask(self, role: str, *words: str) -> bool:
        """Run a program to its end, or to its strike; gives whether it was done. Each is struck once."""
        armed = self._armed(role) if role not in self.codes else self.env
        asking = await start(armed, module="tests.support.crash_client", name=role, arguments=words)
        code = await asking.ended()
        self.codes.setdefault(role, code)
        assert code == 0 or self.case.role == role, asking.logged()
        return code == 0

    def _armed(self, role: str) -> dict[str, str]:
        armed = self.env | {TALLY: str(self.tally(role))}
        return armed | ({POINT: str(self.case.strike)} if self.case.strike and self.case.role == role else {})

    # --- what must hold afterwards

    async def check(self, row: RunRow, attempts: int) -> None:
        """Check the promises. `attempts` = those of a clean run."""
        case, died = self.case, int(self.case.dies)
        shown = await self.world.show(row.uuid)
        assert (RunStatus.COMPLETED, "done") == (shown.status, shown.answer), shown
        assert case.strike is None or struck(self.tally(case.role)), "it never came to the strike"
        self._check_codes()
        assert [1] == list(self.story.writes.values()), self.story.writes
        executed = Counter((line["tool"], line["key"]) for line in self.world.executed())
        assert {"lookup_order", "set_label"} == {tool for tool, _ in executed}
        assert 2 == len(executed) and sum(executed.values()) <= 2 + died, executed
        self._check_sends(died if case.role == "worker" else 0)
        assert row.attempts - self.settled in (attempts, attempts + died), row.attempts
        self.world.repeated |= {key for _, key in executed} if died else set()
        await self.world.check()

    def _check_codes(self) -> None:
        """A struck program died of its signal; a worker that was asked to end ended well."""
        case, code = self.case, self.codes[self.case.role]
        if case.strike is not None and (case.strike.signal is signal.SIGKILL or case.role != "worker"):
            assert -case.strike.signal == code, code
        else:
            # A second SIGTERM does not wait for the drain, unless that is over just then.
            assert code in ((0, 130) if case.dies and case.release else (0,)), code

    def _check_sends(self, died: int) -> None:
        spare = Counter(line["round"] for line in self.world.sent())
        assert set(range(1, _ROUNDS + 1)) == set(self.story.sends) and {1} == set(spare)
        assert {"spare"} == {line["provider"] for line in self.world.sent()}
        for sends in (self.story.sends, spare):
            assert max(sends.values()) <= 1 + died, (self.story.sends, spare)


def _drain(worker: Worker) -> None:
    """Ask a worker to end, and answer it only when it drains: its intake has stopped by then."""
    worker.signal(signal.SIGTERM)
    time.sleep(LEASE_S / 2)


@asynccontextmanager
async def open_stage(
    folder: Path, case: Case, *, ledger: Ledger, url: str, broker: str, **variables: str
) -> AsyncIterator[Stage]:
    """Open an installation on a migrated database and begin a story in it."""
    name = folder.name
    story = ledger.tell(name, Story(replies=replies(ledger.write_url(name)), fails=frozenset({1})))
    env = environment(folder, broker, REGATE_DATABASE_URL=url, REGATE_LEASE_SECONDS=str(LEASE_S), **variables)
    opened = open_world(
        folder, claims=False, create=True, document=document(ledger, name), url=url, lease_s=LEASE_S, checks=False
    )
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(opened)
        world.signals.down = True
        world.script(*replies(ledger.write_url(name)))
        yield Stage(world=world, story=story, case=case, env=env, folder=folder, stack=stack)
