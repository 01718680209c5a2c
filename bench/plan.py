"""What is measured: one line for each case of a round, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

__all__ = ["ENGINES", "GROUPS", "PEERS", "Plan", "plans"]

ENGINES: Final = ("sqlite", "postgresql")
GROUPS: Final = ("W", "steps", "rounds", "redis", "approve", "idle", "waiting", "workers")
PEERS: Final = ("langgraph", "langgraph-exit", "pydantic-ai", "openai-agents", "dbos")
_MANY: Final = 1_000_000
"""Runs that no case reaches: it ends by time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One case. Units: no run is begun after `seconds`."""

    group: str
    name: str
    engine: str
    concurrency: int = 50
    runs: int = _MANY
    seconds: float = 3.0
    workers: int = 1

    @property
    def label(self) -> str:
        """Name it in one line of progress."""
        fleet = f" workers {self.workers}" if self.group == "workers" else ""
        return f"{self.name} {self.engine} at {self.concurrency}{fleet}"


def plans(engines: Sequence[str], groups: Sequence[str], *, peers: bool, quick: bool) -> list[Plan]:
    """Give the cases of one round. `quick` = enough to see that everything works, too little for figures."""
    found = [plan for engine in engines for plan in _all(engine) if plan.group in groups]
    found = [plan for plan in found if peers or plan.name not in PEERS]
    if quick:
        found = [_short(plan) for plan in found if plan.group != "W" or plan.concurrency == 50]
    return found


def _all(engine: str) -> Iterator[Plan]:
    for concurrency in (1, 50, 500):
        seconds = 1.5 if concurrency == 1 else 2.5
        for name in ("floor", "ours"):
            yield Plan(group="W", name=name, engine=engine, concurrency=concurrency, seconds=seconds)
        # 500 runs in flight take some of them more than a minute, and say nothing that 50 do not.
        for name in PEERS if concurrency <= 50 else ():
            yield Plan(group="W", name=name, engine=engine, concurrency=concurrency, seconds=seconds)
    yield Plan(group="steps", name="steps", engine=engine, runs=300, seconds=4.0)
    yield Plan(group="rounds", name="rounds", engine=engine, concurrency=1, runs=1)
    yield Plan(group="redis", name="redis", engine=engine, runs=300, seconds=4.0)
    yield Plan(group="approve", name="approve", engine=engine, concurrency=1, runs=100, seconds=4.0)
    yield Plan(group="approve", name="approve", engine=engine, runs=200, seconds=4.0)
    yield Plan(group="idle", name="idle", engine=engine, concurrency=1, runs=8)
    yield Plan(group="waiting", name="waiting", engine=engine, runs=5000, seconds=1.5)
    for workers in (1, 2, 4):
        yield Plan(group="workers", name="workers", engine=engine, workers=workers, seconds=2.5)


def _short(plan: Plan) -> Plan:
    runs = {"waiting": 200, "idle": 2, "rounds": 1}.get(plan.group, 60)
    return replace(plan, runs=runs, seconds=0.5)
