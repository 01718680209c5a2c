"""Schedules of a whole fleet, each replayable by its seed. More of them: `--schedules N`, or REGATE_SIMULATE=N.

One again, with everything that happened: `python -m tests.simulation --schedule-seed S`.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

from tests.simulation.plan import make_plan
from tests.simulation.schedule import run_schedule

DEFAULT: Final = 250
"""Schedules of a plain test run: about a fifth of a second each, on one core."""
BATCHES: Final = 12
"""Test items, so that several cores share them."""
ASKED: Final = os.environ.get("REGATE_SIMULATE")  # read here: no test sees a variable of ours


def seeds(config: pytest.Config) -> range:
    """Give the seeds to run: one that was named, or as many as were asked for."""
    named = config.getoption("--schedule-seed")
    if named is not None:
        return range(named, named + 1)
    return range(int(config.getoption("--schedules") or ASKED or DEFAULT))


@pytest.mark.parametrize("batch", range(BATCHES))
def test_no_schedule_breaks_an_invariant(batch: int, pytestconfig: pytest.Config) -> None:
    for seed in list(seeds(pytestconfig))[batch::BATCHES]:
        outcome = run_schedule(make_plan(seed))

        if outcome.violation is not None:
            pytest.fail(outcome.told(), pytrace=False)


def test_schedules_reach_the_world_outside() -> None:
    """A simulation in which nothing happens would find nothing."""
    outcomes = [run_schedule(make_plan(seed)) for seed in range(6)]

    assert sum(outcome.sends for outcome in outcomes) >= 30
    assert sum(outcome.executions for outcome in outcomes) >= 15
