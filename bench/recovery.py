"""What a crash costs and what a restart costs: `python -m bench.recovery` measures both in about two minutes.

Real workers, scripted models. Recovery: one worker holds 500 runs whose sends are in the air and is killed; another one
stands by. Its seconds are from the kill to the next arrival of each run's send at the provider. Restart: two workers
are replaced one after the other, each asked to end when its successor is ready; what is compared are runs from creation
to end, with and without that. Prints a table and one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from codec.vocabulary import FINAL_STATUSES, RunStatus
from tests.support.postgres import server
from tests.support.processes import Fleet, fleet
from tests.support.world import call, eventually, reply
from worker.adapters.sql.migrate import migrate
from worker.ports.records import RunFilter

__all__ = ["main"]

ENGINES: Final = ("sqlite", "postgresql")
SHORT: Final = (2.0, 1.0)
DEFAULT: Final = (30.0, 5.0)
"""Seconds of a lease and of a sweep."""
_RATE: Final = 20.0
"""Runs a second while workers are replaced."""
_WAIT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured. Units: `delay_ms` of a model; `steady_s` of load, without and with a restart."""

    engines: Sequence[str]
    runs: int
    delay_ms: int = 4000
    steady_s: float = 8.0
    default: bool = True


@asynccontextmanager
async def _fleet(folder: Path, engine: str, times: tuple[float, float]) -> AsyncIterator[Fleet]:
    """Open an installation without workers; on PostgreSQL on a server with its default settings."""
    with ExitStack() as stack:
        if engine == "postgresql":
            url = await asyncio.to_thread(lambda: stack.enter_context(server(durable=True).clone()))
        else:
            url = f"sqlite:///{folder / 'regate.db'}"
            await asyncio.to_thread(migrate, url)
        try:
            sweep = {"REGATE_SWEEP_SECONDS": str(times[1]), "REGATE_MAX_RUNS": "2000"}
            async with fleet(folder, 0, url=url, lease_s=times[0], checks=False, **sweep) as found:
                yield found
        finally:
            await asyncio.to_thread(stack.close)


async def _enqueue(found: Fleet, runs: int) -> list[str]:
    uuids = [(await found.world.runtime.enqueue(found.world.ask(str(n)))).uuid for n in range(runs)]
    await found.signals.wake(uuids)
    return uuids


def _sends(found: Fleet) -> list[dict[str, Any]]:
    return found.world.sent()


async def measure_recovery(
    folder: Path, engine: str, times: tuple[float, float], plan: Plan, *, to_the_end: bool
) -> dict[str, Any]:
    """Kill a worker that holds all runs; see each of them sent again, and all end when asked to."""
    runs = plan.runs
    delay_ms = plan.delay_ms if to_the_end else 120_000
    async with _fleet(folder, engine, times) as found:
        found.world.script(reply("", call("echo", text="x"), delay_ms=delay_ms), reply("done", delay_ms=delay_ms))
        victim = await found.add("victim")
        await _enqueue(found, runs)
        await eventually(lambda: len(_sends(found)) == runs, "all sends are in the air", seconds=_WAIT_S)
        await found.add("standby")
        killed_at = time.time()
        victim.signal(signal.SIGKILL)
        await victim.ended()
        await eventually(lambda: len(_again(found)) == runs, "all are sent again", seconds=_WAIT_S, every=0.2)
        took = sorted(at - killed_at for at in _again(found).values())
        found_out = {"lost": None, "extra_sends": len(_sends(found)) - runs}
        if to_the_end:
            await _ended(found)
            rows = await found.world.store.runs(RunFilter(statuses=(RunStatus.COMPLETED,)))
            found_out = {"lost": runs - len(rows), "extra_sends": len(_sends(found)) - 2 * runs}
    measured = {"in_flight": runs, **_percentiles(took), **found_out}
    return {"engine": engine, "lease_s": times[0], "sweep_s": times[1], **measured}


def _again(found: Fleet) -> dict[str, float]:
    """Give when each run's first send arrived for the second time, in seconds since the epoch."""
    arrived: dict[str, list[float]] = defaultdict(list)
    for line in _sends(found):
        if line["round"] == 1:
            arrived[line["run"]].append(line["at"])
    return {run: at[1] for run, at in arrived.items() if len(at) > 1}


async def _ended(found: Fleet) -> None:
    open_statuses = tuple(frozenset(RunStatus) - FINAL_STATUSES)

    async def all_ended() -> bool:
        return not await found.world.store.runs(RunFilter(statuses=open_statuses, limit=1))

    await eventually(all_ended, "all runs end", seconds=_WAIT_S, every=0.05)


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {
        "p50_s": round(ordered[last // 2], 3),
        "p99_s": round(ordered[min(last, round(last * 0.99 + 0.49))], 3),
        "max_s": round(ordered[-1], 3),
    }


async def measure_restart(folder: Path, engine: str, steady_s: float) -> dict[str, Any]:
    """Replace both workers under a steady load, and compare with the same load left alone."""
    async with _fleet(folder, engine, DEFAULT) as found:
        found.world.script(*(reply("", call("echo", f"c{n}", text="x"), delay_ms=200) for n in range(3)), reply("done"))
        old = [await found.add("old0"), await found.add("old1")]
        await _steady(found, 1.0)
        alone = await _steady(found, steady_s)
        loading = asyncio.create_task(_steady(found, steady_s))
        for number, worker in enumerate(old):
            await asyncio.sleep(steady_s / 4)
            await found.add(f"new{number}")
            worker.signal(signal.SIGTERM)
            assert 0 == await worker.ended()
        restarted = await loading
        rows = await found.world.store.runs(RunFilter())
        sends = Counter((line["run"], line["round"]) for line in _sends(found))
    added = {name: round(restarted[name] - alone[name], 3) for name in ("p50_s", "p99_s", "max_s")}
    return {
        "engine": engine,
        "runs_per_s": _RATE,
        "runs": len(rows),
        "lost": sum(row.status is not RunStatus.COMPLETED for row in rows),
        "attempts_counted": sum(row.attempts - 1 for row in rows),
        "extra_sends": sends.total() - len(sends),
        "alone": alone,
        "restarted": restarted,
        "added": added,
    }


async def _steady(found: Fleet, seconds: float) -> dict[str, float]:
    """Enqueue at a steady rate, and give the runs' seconds from creation to end by the database's clock."""
    began, uuids = time.monotonic(), list[str]()
    while (due := began + len(uuids) / _RATE) < began + seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        uuids += await _enqueue(found, 1)
    await _ended(found)
    mine = set(uuids)
    rows = [row for row in await found.world.store.runs(RunFilter()) if row.uuid in mine]
    return _percentiles([row.finished_at - row.created_at for row in rows if row.finished_at is not None])


# --- telling


async def _measure(plan: Plan) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="regate-recovery-") as name:
        folders = (Path(name) / str(number) for number in range(100))

        def fresh() -> Path:
            folder = next(folders)
            folder.mkdir()
            return folder

        short = [await measure_recovery(fresh(), e, SHORT, plan, to_the_end=True) for e in plan.engines]
        restarts = [await measure_restart(fresh(), e, plan.steady_s) for e in plan.engines]
        # These wait for half a minute and do next to nothing meanwhile.
        later = plan.engines if plan.default else ()
        waits = [measure_recovery(fresh(), e, DEFAULT, plan, to_the_end=False) for e in later]
        return {"recovery": [*short, *await asyncio.gather(*waits)], "restart": restarts}


def _table(results: dict[str, Any]) -> Iterable[str]:
    yield f"{'recovery after SIGKILL':<24}{'lease/sweep':>12}{'runs':>7}{'p50 s':>8}{'p99 s':>8}{'extra':>7}{'lost':>6}"
    for r in results["recovery"]:
        times = f"{r['lease_s']:g}/{r['sweep_s']:g}"
        lost = "-" if r["lost"] is None else r["lost"]
        yield (
            f"{r['engine']:<24}{times:>12}{r['in_flight']:>7}{r['p50_s']:>8.2f}{r['p99_s']:>8.2f}"
            f"{r['extra_sends']:>7}{lost:>6}"
        )
    yield f"{'rolling restart':<24}{'':>12}{'runs':>7}{'+p50 s':>8}{'+p99 s':>8}{'extra':>7}{'lost':>6}"
    for r in results["restart"]:
        added = r["added"]
        yield (
            f"{r['engine']:<24}{'30/5':>12}{r['runs']:>7}{added['p50_s']:>8.2f}{added['p99_s']:>8.2f}"
            f"{r['extra_sends']:>7}{r['lost']:>6}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when a run was lost or an attempt was counted."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.recovery", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", default=",".join(ENGINES), help=f"of {','.join(ENGINES)}")
    parser.add_argument("--runs", type=int, default=500, metavar="N", help="runs in flight when their worker is killed")
    parser.add_argument("--quick", action="store_true", help="see that it works; the figures mean nothing")
    given = parser.parse_args(argv)
    plan = Plan(engines=given.engine.split(","), runs=given.runs)
    if given.quick:
        plan = Plan(engines=plan.engines, runs=min(20, plan.runs), delay_ms=500, steady_s=2.0, default=False)
    results = asyncio.run(_measure(plan))
    print("\n".join(_table(results)))
    print(json.dumps(results))
    return int(any(r["lost"] for r in (*results["recovery"], *results["restart"])))


if __name__ == "__main__":
    sys.exit(main())
