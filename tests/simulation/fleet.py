"""Simulated processes: each has its own loop, clock, store, feed and host, and shares nothing but the database.

A killed process has no effect from that moment on: whatever it asks for is never answered. What was on its way already
may still arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.content import ring_of
from tests.simulation.database import SimulatedBackend
from tests.simulation.outside import Models, Signals, Tools, VirtualClock
from tests.simulation.plan import Ambush, Harm
from worker.adapters.sealing import RingSealer
from worker.adapters.sql.catalogue import SqlCatalogue
from worker.adapters.sql.clock import Clock
from worker.adapters.sql.engine import Database
from worker.adapters.sql.store import SqlRunStore
from worker.runtime.feed import PolicyFeed
from worker.runtime.host import Host
from worker.runtime.parts import Figures, Parts
from worker.runtime.service import Runtime
from worker.runtime.sweeper import sweep_forever

if TYPE_CHECKING:
    from tests.simulation.schedule import Simulation

__all__ = ["DRAIN_S", "LEASE_S", "SWEEP_S", "Fleet", "Process"]

LEASE_S: Final = 3.0
SWEEP_S: Final = 1.0
_RETRY_S: Final = (0.5, 1.0)
_SEND_TIMEOUT_S: Final = 6.0
DRAIN_S: Final = 4.0


class Process:
    """One process. `drives` = a worker, which claims and sweeps; else a desk, at which people sit."""

    def __init__(self, sim: Simulation, name: str, *, drives: bool, generation: int) -> None:
        self.sim = sim
        self.name = name
        self.drives = drives
        self.generation = generation
        self.loop = sim.kernel.new_loop(name)
        self.clock = VirtualClock(sim.kernel, sim.chance(f"clock of {name}"))
        self.dead = False
        self.buried = False
        self.leaving = False
        self.gave_up = False
        self.people: list[asyncio.Task[Any]] = []
        self.disturbed_at = self.busy_at = sim.kernel.now
        self._stalled_until = 0.0
        clock = Clock(self.clock.monotonic)
        self.database = Database(SimulatedBackend(self, clock), clock, "sqlite")
        self.sealer = RingSealer(ring_of(generation))
        self.store = SqlRunStore(self.database, lease_s=LEASE_S)
        self.catalogue = SqlCatalogue(self.database, self.sealer)
        self.runtime = self._runtime()
        self.host = self.runtime.host
        self._sweeping: asyncio.Task[Any] | None = None

    def _runtime(self) -> Runtime:
        tools = Tools(self)
        feed = PolicyFeed(self.catalogue, tools, self.sealer)
        parts = Parts(
            store=self.store,
            catalogue=self.catalogue,
            sealer=self.sealer,
            models=Models(self),
            toolbox=tools,
            signals=Signals(self),
            clock=self.clock,
            figures=Figures(
                lease_s=LEASE_S,
                sweep_s=SWEEP_S,
                retry_s=_RETRY_S,
                max_runs=self.sim.plan.slots if self.drives else 100,
                send_timeout_s=_SEND_TIMEOUT_S,
            ),
            holder=self.name,
            log=self._log,
        )
        return Runtime(parts, feed, Host(parts, feed))

    def _log(self, event: str, told: dict[str, Any]) -> None:
        run = {"run": self.sim.known(told["run"])} if "run" in told else {}
        if event == "run.overdue":
            self.sim.disturbed(self)  # it lets a run go on purpose
        if event in ("run.left", "run.overdue"):
            self.gave_up = True  # to its lease, which a heartbeat under way may still renew once
        self.sim.note(self, event, **{**told, **run})

    @property
    def working(self) -> bool:
        """Whether it lives, runs and has not been told to leave."""
        return not (self.dead or self.leaving) and self.loop.awake

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run something as a task of this process."""
        return self.loop.create_task(work, name=name)

    def start(self) -> None:
        """Begin its duties, in the order of the real entry points."""
        self.spawn(self.host.start(claims=self.drives), "start")
        if self.drives:
            self._sweeping = self.spawn(sweep_forever(self.runtime.parts, self.host.wake_oldest), "sweeper")
            self.loop.call_soon(self.host.wake_oldest)

    def take_ring(self, generation: int) -> None:
        """Have the key ring of so many rotations, as a sealer does that finds its file changed."""
        self.generation = generation
        self.sealer._ring = ring_of(generation)
        self.sim.disturbed(self)

    def kill(self) -> None:
        """End it here and now."""
        self.dead = True
        self.loop.kill()

    def stall(self, for_s: float) -> None:
        """Stop it for a while; its clock goes on."""
        self.loop.stall()
        self._stalled_until = max(self._stalled_until, self.sim.kernel.now + for_s)
        self.sim.kernel.after(for_s, self._resume)

    def _resume(self) -> None:
        over = self.sim.kernel.now >= self._stalled_until  # else another stall began meanwhile
        if over and not self.dead and not self.loop.awake:
            self.loop.resume()
            self.sim.note(self, "resumed")
            self.sim.disturbed(self)

    def drain(self) -> None:
        """Tell it to leave, as SIGTERM does."""
        self.leaving = True
        self.spawn(self._leave(), "leave")

    async def _leave(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        began = self.sim.kernel.now
        await self.host.drain(DRAIN_S)
        took = self.sim.kernel.now - began
        await self.runtime.woken()
        await self.store.stop()
        self.sim.note(self, "left", running=self.host.running)
        self.sim.invariants.left(self, took)
        self.kill()
        await self.never()

    # --- gates

    def spring(self, point: str) -> None:
        """Pass a point where an ambush may lie."""
        if self.sim.storming and not self.dead:
            self.sim.fleet.spring(self, point)

    async def point(self, name: str) -> None:
        """Pass a point; a process that dies there goes no further, one that stalls there does later."""
        if self.dead:
            await self.never()
        self.spring(name)
        if self.dead:
            await self.never()
        if not self.loop.awake:
            await asyncio.sleep(0)

    async def never(self) -> None:
        """Wait for ever; until the process is buried."""
        if not self.buried:
            await self.loop.create_future()
        raise asyncio.CancelledError

    def bury(self) -> None:
        """Clear away what is left of it."""
        self.dead = self.buried = True
        self.loop.bury()


class Fleet:
    """All processes that there ever were, and the harm that comes to them."""

    def __init__(self, sim: Simulation) -> None:
        self.all: list[Process] = []
        self.generation = 0
        self._sim = sim
        self._chance = sim.chance("fleet")
        self._left: dict[Ambush, int] = {ambush: ambush.passage for ambush in sim.plan.ambushes}

    @property
    def workers(self) -> list[Process]:
        """Those that drive runs and were neither killed nor told to leave."""
        return [p for p in self.all if p.drives and not p.dead and not p.leaving]

    def named(self, name: str | None) -> Process | None:
        """Give a process by its name."""
        return next((p for p in self.all if p.name == name), None)

    def open(self, *, drives: bool) -> Process:
        """Start a process with the newest key ring."""
        name = f"{'worker' if drives else 'desk'}-{1 + sum(p.drives is drives for p in self.all)}"
        process = Process(self._sim, name, drives=drives, generation=self.generation)
        self.all.append(process)
        process.start()
        self._sim.note(process, "started", ring=self.generation)
        self._sim.disturbed(process)
        return process

    def deliver(self, run: str) -> None:
        """Let a wake-up arrive at one worker of those that listen; stalled ones still do."""
        if not self.workers:
            return
        worker = self._chance.choice(self.workers)
        self._sim.note(worker, "wake-up", run=self._sim.known(run))
        worker.loop.call_soon(worker.host.wake, [run])

    def spring(self, process: Process, point: str) -> None:
        """Count a passage; the ambush whose turn it is strikes."""
        for ambush in self._left:
            if ambush.point == point:
                self._left[ambush] -= 1
                if self._left[ambush] == 0:
                    self._sim.note(process, "ambush", point=point, harm=ambush.harm)
                    self.strike(process, ambush.harm, ambush.for_s)

    def strike(self, process: Process, harm: Harm, for_s: float) -> None:
        """Do harm to a process; whoever leaves is replaced after a while."""
        if process.dead or (process.leaving and harm is Harm.DRAIN):
            return
        self._sim.note(process, harm, for_s=round(for_s, 3))
        self._sim.disturbed(process)
        if harm is Harm.STALL:
            process.stall(for_s)
            return
        if harm is Harm.KILL:
            process.kill()
        else:
            process.drain()
        self._sim.kernel.after(for_s, self._sim.replaced, process)

    def bury(self) -> None:
        """Clear everything away."""
        for process in self.all:
            process.bury()
