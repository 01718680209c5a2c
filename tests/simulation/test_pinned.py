"""Schedules that once showed a fault of the product: they are run for ever, and still show it when it is put back."""

from __future__ import annotations

from typing import Final, NamedTuple

import pytest

from tests.simulation.plan import make_plan
from tests.simulation.planted import PLANTED
from tests.simulation.schedule import run_schedule


class Pinned(NamedTuple):
    """A schedule, by its seed, and the fault that it showed, by the name under which it can be planted again."""

    seed: int
    fault: str


PINNED: Final = (
    # Wake-ups went to a worker without a free slot, and each sweep's mark kept the free one from waking the run.
    Pinned(0, "the_sweeper_trusts_its_messages"),
    Pinned(9, "the_sweeper_trusts_its_messages"),
    # Two people continued one failed run: what was open in it was open in two runs, under one key.
    Pinned(3, "two_who_continue_a_run_at_once_both_do"),
    Pinned(7, "two_who_continue_a_run_at_once_both_do"),
    # Two who looked at a working run at once were told that it was corrupt.
    Pinned(5, "who_ask_for_a_run_at_once_get_its_entries_twice"),
    Pinned(6, "who_ask_for_a_run_at_once_get_its_entries_twice"),
)


@pytest.mark.parametrize("pinned", PINNED, ids=str)
def test_a_schedule_that_found_a_fault_finds_nothing_any_more(pinned: Pinned, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = PLANTED[pinned.fault]
    plan = make_plan(pinned.seed, fault.climate)

    assert run_schedule(plan).violation is None

    fault.plant(monkeypatch)
    shown = run_schedule(plan).violation
    assert shown is not None, "the schedule has become another one; pin one that shows it"
    assert shown.invariant in fault.tells
