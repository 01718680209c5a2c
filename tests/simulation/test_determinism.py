"""A schedule that cannot be seen again is worth nothing: equal seeds, equal traces, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.simulation.plan import Climate, make_plan
from tests.simulation.schedule import run_schedule

ROOT: Final = Path(__file__).resolve().parents[2]
SEEDS: Final = range(6)
"""One of each climate."""


def test_a_seed_gives_the_same_trace_whatever_ran_before() -> None:
    first = [run_schedule(make_plan(seed)).trace.digest() for seed in SEEDS]
    again = [run_schedule(make_plan(seed)).trace.digest() for seed in reversed(SEEDS)]

    assert first == again[::-1]
    assert len(set(first)) == len(SEEDS)


def test_two_processes_that_hash_differently_see_the_same() -> None:
    assert digests("1") == digests("2")


def digests(hash_seed: str) -> list[str]:
    """Run schedules in a process of their own and give the hashes of their traces."""
    command = [sys.executable, "-m", "tests.simulation", "--digest", "--schedules", str(len(SEEDS))]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True)
    found = done.stdout.split()
    assert len(found) == len(SEEDS)
    return found


def test_a_plan_depends_on_nothing_but_its_seed() -> None:
    assert make_plan(7) == make_plan(7)
    assert make_plan(7) != make_plan(8)
    assert make_plan(7, Climate.POLICY).climate is Climate.POLICY
