"""One schedule: a storm in which people, editors and faults do what the seed says, then a calm that ends all runs."""

from __future__ import annotations

import gc
import random
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from codec.actor import LOCAL
from codec.commands import Permit
from codec.facts import ToolFacts
from codec.request import AgentRunRequest
from tests.simulation.content import ring_of
from tests.simulation.database import MemoryDatabase
from tests.simulation.editor import Editor, install
from tests.simulation.ending import check_end
from tests.simulation.fleet import Fleet, Process
from tests.simulation.invariants import Invariants, Violation
from tests.simulation.ledger import Ledger, Send, Trace
from tests.simulation.loop import Kernel
from tests.simulation.people import People
from tests.simulation.plan import Blow, Climate, Drought, Plan, make_plan
from tests.simulation.watch import Watch
from tests.simulation.weather import Weather
from worker.adapters.sql.keys import register_ring
from worker.adapters.sql.rewrap import WRAPPED, find_under, rewrap_rows
from worker.ports.models import ModelRequest
from worker.ports.runs import StoreError
from worker.ports.toolbox import ToolCallInfo
from worker.runtime.replaying import ReplayReport

__all__ = ["Outcome", "Simulation", "run_schedule"]

_CALM_S: Final = 90.0
"""Virtual seconds in which every run must end once nobody does harm any more: expiries, parked retries, lost leases."""
_AT_THE_END: Final = 40
"""Lines of the trace that a failure shows."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a schedule came to."""

    plan: Plan
    violation: Violation | None
    trace: Trace = field(repr=False)
    ended_at: float = 0.0
    sends: int = 0
    executions: int = 0

    def told(self) -> str:
        """Say what is broken, what happened just before, and how to see it again."""
        again = f"python -m tests.simulation --schedule-seed {self.plan.seed} --climate {self.plan.climate}"
        lines = [*self.plan.told(), *self.trace.last(_AT_THE_END), f"broken: {self.violation}", f"again: {again}"]
        return "\n".join(lines)


class Simulation:
    """A simulated world."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.kernel = Kernel(self.chance("kernel"))
        self.weather = Weather(plan, self.kernel, self.chance("weather"))
        self.ledger = Ledger()
        self.trace = Trace()
        self.database = MemoryDatabase.shared()
        self.database.now = self._now
        self.watch = Watch(self.database.raw)
        self.invariants = Invariants(self, self.watch)
        self.fleet = Fleet(self)
        self.storming = True
        self.begun = 0
        self.questions: list[str] = []
        self._counted = 0

    def _now(self) -> float:
        return self.kernel.now

    def chance(self, what: str) -> random.Random:
        """Give random numbers of their own to somebody, so that one more draw here changes nothing there."""
        return random.Random(f"{self.plan.seed}:{what}")

    def count(self) -> int:
        """Give a number that nobody else has."""
        self._counted += 1
        return self._counted

    def pause(self, seconds: float) -> float:
        """Shorten a pause that would go on after the storm."""
        return min(seconds, max(0.0, self.plan.storm_s - self.kernel.now) + 0.01)

    def note(self, process: Process | None, what: str, /, **told: Any) -> None:
        """Write a line into the trace."""
        self.trace.note(self.kernel.now, "world" if process is None else process.name, what, told)

    def known(self, uuid: str | None) -> str:
        """Name a run for the trace."""
        known = self.watch.by_uuid.get(uuid or "")
        return str(known.row.uid) if known is not None else "?"

    def disturbed(self, process: Process | None = None) -> None:
        """Something happened to a process, or to all."""
        for one in self.fleet.all if process is None else (process,):
            one.disturbed_at = self.kernel.now

    @property
    def unsteady(self) -> bool:
        """Whether the database is in a state in which nothing is promised about time."""
        rates = self.weather.rates
        return rates.refused > 0 or rates.unknown > 0 or self.weather.anything_away()

    # --- what processes do

    def committed(self, process: Process, work: str) -> None:
        """A transaction was committed."""
        for change in self.invariants.committed(process):
            kinds = ",".join(f"{r.row.kind}{'~' if r.stale else ''}" for r in change.entries)
            new = change.new
            renewed = not kinds and change.old is not None and change.old.token == new.token and new.token is not None
            if renewed and change.old is not None and change.old.status == new.status:
                self.note(process, "renewed", run=new.uid)
                continue
            self.note(process, work, run=new.uid, status=new.status, seq=new.seq, holder=new.holder, entries=kinds)

    def sent(self, process: Process, permit: Permit, request: ModelRequest) -> Send:
        """A request leaves."""
        send = self.ledger.sent(process.name, self.kernel.now, permit, request)
        self.note(process, "SEND", run=self.known(send.run), to=permit.target.identifier, key=send.key[:4])
        self.invariants.sent(process, send)
        return send

    def executed(self, process: Process, tool: ToolFacts, ticket: int, arguments: str, info: ToolCallInfo) -> None:
        """A tool acts."""
        execution = self.ledger.executed(process.name, self.kernel.now, tool, ticket, arguments, info)
        self.note(process, "EXECUTE", run=self.known(info.run), tool=tool.name, ticket=ticket, key=info.key[:4])
        self.invariants.executed(process, execution)

    def accepted(self, uuid: str, request: AgentRunRequest) -> None:
        """A starter was told that the run is stored."""
        self.ledger.accepted.append(uuid)
        if request.idempotency_key is not None:
            first = self.ledger.of_key.setdefault((request.actor.name, request.idempotency_key), uuid)
            self.invariants.started(first, uuid)

    # --- the course of a schedule

    def run(self) -> None:
        """Run it all. Errors: `Violation`."""
        self.watch.read(0.0)
        for blow in self.plan.blows:
            self.kernel.after(blow.at, self._blow, blow)
        for drought in self.plan.droughts:
            self.kernel.after(drought.at, self._drought, drought)
        if self.plan.rotates_at is not None:
            self.kernel.after(self.plan.rotates_at, self._rotate)
        for _ in range(self.plan.workers):
            self.fleet.open(drives=True)
        for _ in range(self.plan.desks):
            self._open_desk()
        self.kernel.moved = self.invariants.moved
        self._until(lambda: self.kernel.now >= self.plan.storm_s)
        self._calm()

    def _blow(self, blow: Blow) -> None:
        alive = [p for p in self.fleet.all if not p.dead]
        if alive and self.storming:
            self.fleet.strike(alive[blow.victim % len(alive)], blow.harm, blow.for_s)

    def _drought(self, drought: Drought) -> None:
        alive = [p for p in self.fleet.all if not p.dead]
        if self.storming:
            one = alive[drought.victim % len(alive)] if alive and drought.victim >= 0 else None
            what = f"database of {one.name}" if one is not None and drought.what == "database" else drought.what
            self.note(None, "away", what=what, for_s=round(drought.for_s, 3))
            self.weather.begin(what, drought.for_s)
            self.kernel.after(drought.for_s, self.disturbed)

    def _rotate(self) -> None:
        """Rotate the key ring: some processes find the new one soon, the others not until somebody replaces them."""
        self.fleet.generation += 1
        self.note(None, "rotated", ring=self.fleet.generation)
        chance = self.chance("rotation")
        living = [p for p in self.fleet.all if not p.dead]
        for process in living:
            if not process.drives or chance.random() < 0.5:
                self.kernel.after(chance.uniform(0.0, 1.5), process.take_ring, self.fleet.generation)
        desk = next((p for p in living if not p.drives and not p.leaving), None)
        if desk is not None and chance.random() < 0.7:
            desk.spawn(_wrap_anew(desk, self.fleet.generation), "rotate")

    def replaced(self, process: Process) -> None:
        """Start a process in the place of one that is gone."""
        if process.drives:
            self.fleet.open(drives=True)
        elif self.storming:
            self._open_desk()

    def _open_desk(self) -> Process:
        desk = self.fleet.open(drives=False)
        if self.storming:
            desk.people = People(desk).begin()
            desk.people.append(desk.spawn(Editor(desk).edit_for_ever(self.plan.edit_every_s), "editor"))
        return desk

    def _calm(self) -> None:
        """Let nobody do harm any more; answer and wait until every run has ended, then look at everything once more."""
        self.storming = False
        self.note(None, "calm")
        self.weather.calm()
        for worker in self.fleet.workers:
            if worker.generation < self.fleet.generation:
                worker.drain()
        if sum(worker.working for worker in self.fleet.workers) < 2:
            self.fleet.open(drives=True)
        self.disturbed()
        self._until(self._all_went_home)
        desk = self._open_desk()
        self._finish(desk, Editor(desk).heal(whole=self.plan.heals))
        self._finish(desk, People(desk).settle_all())
        check_end(self, self._finish(desk, _replays(desk, list(self.watch.by_uuid))))
        self._must_hold()

    def _all_went_home(self) -> bool:
        """Whether everybody at a desk has finished what they were at."""
        return all(task.done() for p in self.fleet.all if not p.dead for task in p.people)

    def _finish(self, desk: Process, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something at a desk to its end."""
        task = desk.spawn(work, "finish")
        end = self.kernel.now + _CALM_S
        self._until(lambda: task.done() or self.kernel.now > end)
        if not task.done():
            left = [k.row for k in self.watch.runs.values() if not k.row.final]
            raise Violation("every run ends", ", ".join(f"run {row.uid}" for row in left), str(left))
        return task.result()

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if not self.kernel.turn():
                raise AssertionError("nothing will ever happen again")
            self._must_hold()

    def _must_hold(self) -> None:
        if self.invariants.broken is not None:
            raise self.invariants.broken


async def _wrap_anew(desk: Process, generation: int) -> None:
    """Make the newest key active and wrap everything under it, with the real statements of a rotation."""
    ring = ring_of(generation)
    others = [key for key in ring.keys if key != ring.active]
    with suppress(StoreError):
        await desk.database.transact(register_ring, ring)
        for table in WRAPPED:
            found = await desk.database.read(find_under, table, others, 0, 500)
            await desk.database.transact(rewrap_rows, table, ring, found)


async def _replays(desk: Process, uuids: list[str]) -> dict[str, ReplayReport]:
    return {uuid: await desk.runtime.replay(LOCAL, uuid) for uuid in uuids}


def run_schedule(plan: Plan) -> Outcome:
    """Run one schedule. Law: equal plans, equal outcomes and traces, whatever ran before."""
    content = _installation()
    before = random.getstate()
    random.seed(plan.seed)  # the sweeper's jitter is drawn from the module's own
    gc.disable()  # when it runs depends on what ran before, and tasks without a holder end when it does
    sim = Simulation(plan)
    violation: Violation | None = None
    try:
        sim.database.load(content)
        sim.run()
    except Violation as found:
        violation = found
    finally:
        sim.fleet.bury()
        gc.enable()
        random.setstate(before)
    ledger = sim.ledger
    return Outcome(plan, violation, sim.trace, sim.kernel.now, len(ledger.sends), len(ledger.executions))


@cache
def _installation() -> sqlite3.Connection:
    """Make the installation that every schedule begins with."""
    sim = Simulation(make_plan(0, Climate.MIXED))
    desk = Process(sim, "desk-0", drives=False, generation=0)
    for work in (desk.database.create_all(), desk.database.transact(register_ring, ring_of(0)), install(desk)):
        task = desk.spawn(work, "install")
        while not task.done():
            assert sim.kernel.turn()
        task.result()
    desk.bury()
    return sim.database.copy()
