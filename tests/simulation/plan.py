"""What will happen in a schedule, decided before it begins by its seed alone, and small enough to be read by a person.

Blows fall at a time, ambushes at the n-th passage of a point that processes pass; rates say how often a message, an
answer or a tool goes wrong.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

__all__ = ["POINTS", "Ambush", "Blow", "Climate", "Drought", "Harm", "Plan", "Rates", "make_plan"]


class Climate(StrEnum):
    """What a schedule is mostly about. Seeds go through them in turn."""

    MIXED = "mixed"
    CRASHES = "crashes"
    STALLS = "stalls"
    DATABASE = "database"
    POLICY = "policy"
    PEOPLE = "people"


class Harm(StrEnum):
    """What befalls a process: SIGKILL, SIGSTOP for a while, or SIGTERM."""

    KILL = "kill"
    STALL = "stall"
    DRAIN = "drain"


POINTS: Final = (
    "commit.before",
    "commit.after",
    "send.leaving",
    "send.arrived",
    "tool.leaving",
    "tool.begun",
)
"""Where ambushes lie: around every COMMIT, and around everything that reaches the world outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """Harm at a time. `for_s` = how long it stalls, or how long until a new process takes its place."""

    at: float
    harm: Harm
    victim: int
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ambush:
    """Harm to whichever process passes `point` as the `passage`-th."""

    point: str
    passage: int
    harm: Harm
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drought:
    """A time without something: `database` (for one process or, -1, for all), `broker`, or `speed` of the database."""

    at: float
    for_s: float
    what: str
    victim: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How often things go wrong, each from 0 to 1."""

    lost: float = 0.1
    """Wake-ups that arrive nowhere."""
    repeated: float = 0.1
    late: float = 0.1
    garbage: float = 0.05
    unknown: float = 0.0
    """COMMITs whose answer is lost; in half of them the COMMIT is lost too."""
    refused: float = 0.0
    """Units of work that meet no database."""
    model_fails: float = 0.1
    tool_fails: float = 0.1
    slow: float = 0.1
    """Replies and tools that take seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything about a schedule that is not decided while it runs."""

    seed: int
    climate: Climate
    runs: int
    workers: int
    desks: int
    slots: int
    storm_s: float
    edit_every_s: float
    act_every_s: float
    heals: bool
    rotates_at: float | None
    rates: Rates
    blows: tuple[Blow, ...]
    ambushes: tuple[Ambush, ...]
    droughts: tuple[Drought, ...]

    def told(self) -> list[str]:
        """Say it in lines."""
        lines = [
            f"schedule {self.seed}: {self.climate}, {self.runs} runs, {self.workers} workers of {self.slots} slots"
        ]
        lines += [f"  {f.name} = {getattr(self, f.name)}" for f in fields(self)[5:10]]
        lines += [f"  {self.rates}"]
        return lines + [f"  {one}" for one in (*self.blows, *self.ambushes, *self.droughts)]


_FEW: Final = {Climate.POLICY: 1, Climate.PEOPLE: 1, Climate.DATABASE: 1, Climate.STALLS: 4, Climate.CRASHES: 4}


def make_plan(seed: int, climate: Climate | None = None) -> Plan:
    """Decide a schedule. Law: equal seeds, equal plans, in every process."""
    chance = random.Random(f"{seed}:plan")
    climates = list(Climate)
    kind = climates[seed % len(climates)] if climate is None else climate
    storm = chance.uniform(4.0, 12.0)
    harms = _FEW.get(kind, 2)
    return Plan(
        seed=seed,
        climate=kind,
        runs=chance.randint(2, 5),
        workers=chance.randint(2, 3) if kind is Climate.STALLS else chance.randint(1, 3),
        desks=chance.choice((1, 1, 2)),
        slots=chance.choice((1, 2, 10, 10, 10)),
        storm_s=storm,
        edit_every_s=0.4 if kind is Climate.POLICY else chance.choice((1.5, 4.0, 1000.0)),
        act_every_s=0.25 if kind is Climate.PEOPLE else chance.choice((0.3, 0.6)),
        heals=chance.random() < 0.5,
        rotates_at=chance.uniform(1.0, storm) if chance.random() < 0.25 else None,
        rates=_rates(chance, kind),
        blows=tuple(_blow(chance, kind, storm) for _ in range(chance.randint(0, harms))),
        ambushes=tuple(_ambush(chance, kind) for _ in range(chance.randint(harms // 2, harms + 1))),
        droughts=tuple(_drought(chance, storm) for _ in range(chance.randint(0, 3 if kind is Climate.DATABASE else 1))),
    )


def _rates(chance: random.Random, kind: Climate) -> Rates:
    database = kind is Climate.DATABASE
    return Rates(
        lost=chance.choice((0.0, 0.2, 1.0)),
        repeated=chance.choice((0.0, 0.2)),
        late=chance.choice((0.0, 0.3)),
        garbage=chance.choice((0.0, 0.1)),
        unknown=chance.choice((0.02, 0.1)) if database else chance.choice((0.0, 0.0, 0.01)),
        refused=chance.choice((0.0, 0.05)) if database else 0.0,
        model_fails=chance.choice((0.05, 0.25)),
        tool_fails=chance.choice((0.05, 0.25)),
        slow=chance.choice((0.02, 0.2)),
    )


def _harm(chance: random.Random, kind: Climate) -> Harm:
    usual = {Climate.CRASHES: Harm.KILL, Climate.STALLS: Harm.STALL}.get(kind)
    return usual if usual is not None and chance.random() < 0.7 else chance.choice(tuple(Harm))


def _blow(chance: random.Random, kind: Climate, storm: float) -> Blow:
    harm = _harm(chance, kind)
    return Blow(at=chance.uniform(0.2, storm), harm=harm, victim=chance.randrange(8), for_s=_length(chance, harm))


def _ambush(chance: random.Random, kind: Climate) -> Ambush:
    harm = _harm(chance, kind)
    # Whoever stops shows most while something of it is in the air.
    points = ("send.arrived", "tool.begun", "commit.after") if harm is Harm.STALL and chance.random() < 0.6 else POINTS
    point = chance.choice(points)
    passage = chance.randint(1, 30 if point.startswith("commit") else 8 if point.startswith("send") else 4)
    return Ambush(point=point, passage=passage, harm=harm, for_s=_length(chance, harm))


def _length(chance: random.Random, harm: Harm) -> float:
    # Stalls around the permit's age (1.5 s under a lease of 3 s), around the lease, and well beyond it.
    if harm is Harm.STALL:
        return chance.choice((chance.uniform(0.3, 2.0), chance.uniform(2.0, 4.5), *[chance.uniform(4.5, 7.5)] * 2))
    return chance.uniform(0.1, 2.0)


def _drought(chance: random.Random, storm: float) -> Drought:
    what = chance.choice(("database", "database", "broker", "speed"))
    return Drought(
        at=chance.uniform(0.2, storm),
        for_s=chance.choice((chance.uniform(0.2, 1.5), chance.uniform(2.0, 7.0))),
        what=what,
        victim=chance.choice((-1, chance.randrange(4))),
    )
