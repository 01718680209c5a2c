"""Progress of long work, for people."""

from __future__ import annotations

import pytest

from worker.cli.progress import Progress


class Clock:
    now = 5.0

    def __call__(self) -> float:
        return self.now


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capsys.readouterr()
    assert "" == out
    return err.splitlines()


def test_a_line_a_second_and_the_last_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = Progress("purged", silent=False, monotonic=clock)

    progress(200, 12_000)
    progress(400, 12_000)
    clock.now += 1.0
    progress(5_000, 12_000)
    progress(12_000, 12_000)

    assert ["purged 200 of 12,000", "purged 5,000 of 12,000", "purged 12,000 of 12,000"] == told(capsys)


def test_programs_are_told_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Progress("purged", silent=True)(1, 1)

    assert [] == told(capsys)
