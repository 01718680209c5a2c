"""Run schedules from a shell: `python -m tests.simulation --schedules 5000 --seed 1`, or one again with its trace."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import TextIO

from tests.simulation.plan import Climate, make_plan
from tests.simulation.schedule import run_schedule

__all__: list[str] = []

_REPORT_EVERY_S = 30.0


def _say(text: str, where: TextIO = sys.stdout) -> None:
    where.write(f"{text}\n")
    where.flush()


def main() -> int:
    """Give 1 when an invariant broke."""
    asked = _arguments()
    climate = None if asked.climate is None else Climate(asked.climate)
    if asked.schedule_seed is not None:
        return _again(asked.schedule_seed, climate, digest=asked.digest)
    return _many(range(asked.seed, asked.seed + asked.schedules), climate, digest=asked.digest)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=500, help="how many to run")
    parser.add_argument("--seed", type=int, default=0, help="the first one's seed; the others follow")
    parser.add_argument("--schedule-seed", type=int, help="run this one and show its whole trace")
    parser.add_argument("--climate", choices=[c.value for c in Climate], help="for all; else seeds go through them")
    parser.add_argument("--digest", action="store_true", help="print a hash of each trace and nothing else")
    return parser.parse_args()


def _again(seed: int, climate: Climate | None, *, digest: bool) -> int:
    outcome = run_schedule(make_plan(seed, climate))
    if not digest:
        _say("\n".join([*outcome.plan.told(), *outcome.trace.last()]))
    _say(outcome.trace.digest() if digest else str(outcome.violation or "nothing broke"))
    return 1 if outcome.violation is not None else 0


def _many(seeds: range, climate: Climate | None, *, digest: bool) -> int:
    began = told = time.monotonic()
    broken: Counter[str] = Counter()
    sends = executions = 0
    for number, seed in enumerate(seeds, 1):
        outcome = run_schedule(make_plan(seed, climate))
        sends, executions = sends + outcome.sends, executions + outcome.executions
        if digest:
            _say(outcome.trace.digest())
        elif outcome.violation is not None:
            broken[outcome.violation.invariant] += 1
            _say(f"schedule {seed} ({outcome.plan.climate}): {outcome.violation}")
        if time.monotonic() - told > _REPORT_EVERY_S:
            told = time.monotonic()
            _say(f"{number} schedules, {number / (told - began):.1f}/s", sys.stderr)
    if not digest:
        rate = len(seeds) / max(0.001, time.monotonic() - began)
        _say(f"{len(seeds)} schedules, {sends} sends, {executions} executions, {rate:.1f} schedules/s")
        _say(f"broken: {dict(broken) or 'nothing'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
