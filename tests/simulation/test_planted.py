"""The simulation finds faults that are planted into the product: whatever guard is dropped, some invariant misses it.

A fault is looked for from a seed on that shows it today, through as many schedules as `within` says at most.
"""

from __future__ import annotations

import pytest

from tests.simulation.plan import make_plan
from tests.simulation.planted import PLANTED
from tests.simulation.schedule import run_schedule


@pytest.mark.parametrize("name", PLANTED)
def test_the_simulation_finds_planted_faults(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = PLANTED[name]
    fault.plant(monkeypatch)

    for seed in range(fault.first, fault.first + fault.within):
        violation = run_schedule(make_plan(seed, fault.climate)).violation
        if violation is not None:
            assert violation.invariant in fault.tells
            return
    pytest.fail(f"{fault.within} schedules did not find it")
