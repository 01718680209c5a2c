"""What measures recovery works: everything that is killed is recovered, and a restart loses nothing."""

from __future__ import annotations

import json

import pytest

from bench.recovery import main


def test_a_quick_measurement_finds_nothing_lost(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["--quick", "--engine", "sqlite"])

    *table, document = capsys.readouterr().out.splitlines()
    found = json.loads(document)
    [recovery], [restart] = found["recovery"], found["restart"]
    assert (20, 20, 0) == (recovery["in_flight"], recovery["extra_sends"], recovery["lost"])
    assert recovery["lease_s"] * 2 / 3 < recovery["p50_s"]
    assert (0, 0, 0) == (restart["lost"], restart["attempts_counted"], restart["extra_sends"])
    assert 4 == len(table)
