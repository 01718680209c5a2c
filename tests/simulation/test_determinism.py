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
    processes = [begun(hash_seed) for hash_seed in ("1", "2")]
    first, second = (process.communicate(timeout=120)[0].split() for process in processes)

    assert [0, 0] == [process.returncode for process in processes]
    assert first == second
    assert len(first) == len(SEEDS)


def begun(hash_seed: str) -> subprocess.Popen[str]:
    """Run schedules in a process of their own, which prints the hashes of their traces."""
    command = [sys.executable, "-m", "tests.simulation", "--digest", "--schedules", str(len(SEEDS))]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def test_a_plan_depends_on_nothing_but_its_seed() -> None:
    assert make_plan(7) == make_plan(7)
    assert make_plan(7) != make_plan(8)
    assert make_plan(7, Climate.POLICY).climate is Climate.POLICY
