"""The page says what the results say: medians, ratios within a round, targets met or missed, what did not run."""

from __future__ import annotations

from typing import Any

from bench.page import page
from bench.results import Results, cell


def case(name: str, *rates: float, engine: str = "sqlite") -> dict[str, Any]:
    found = [
        {"runs_per_s": rate, "cpu_ms_per_run": 1.0, "rows_per_run": 8, "disk_bytes_per_run": 900} for rate in rates
    ]
    return {"name": name, "engine": engine, "concurrency": 50, "workers": 1, "found": found}


def document(*cases: dict[str, Any], without_others: str | None = None) -> dict[str, Any]:
    return {
        "date": "2030-01-01",
        "rounds": 3,
        "machine": {"CPU": "one"},
        "without_others": without_others,
        "cases": list(cases),
    }


def row(text: str, begin: str) -> str:
    """The first row of a table that begins like this."""
    return next(line for line in text.splitlines() if line.startswith(f"| {begin}"))


def test_a_cell_is_the_median_with_its_spread() -> None:
    assert "20 (10–90)" == cell([90, 10, 20])
    assert "20" == cell([20, 20.2])
    assert "–" == cell([])


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that is ten times slower in one round changes nothing."""
    results = Results(document(case("floor", 200, 20, 200), case("ours", 100, 10, 100)))
    assert [2, 2, 2] == results.ratios("floor", "ours", "sqlite")


def test_a_target_is_met_or_missed_by_its_median() -> None:
    """Ours are within twice of the floor's in two rounds of three, and four times as fast as `exit` in one."""
    text = page(document(case("floor", 200, 200, 900), case("ours", 100, 100, 100), case("langgraph-exit", 20, 50, 50)))
    assert row(text, "the floor's runs/s against ours").endswith("| ≤ 2× | 2.0× (2.0–9.0) | ✓ |")
    assert row(text, "runs/s against LangGraph, durability `exit`").endswith("| ≥ 4× | 2.0× (2.0–5.0) | missed |")


def test_what_did_not_run_is_told_and_has_no_figure() -> None:
    failed = {
        "name": "dbos",
        "engine": "sqlite",
        "concurrency": 50,
        "workers": 1,
        "found": [{"error": "no such module"}],
    }
    text = page(document(case("ours", 100), failed, without_others=None))
    assert "* dbos on sqlite at 50: no such module" in text
    assert "| DBOS | – | – | – | – | – | – |" == row(text, "DBOS")
    assert row(text, "runs/s against DBOS").endswith("| did not run | – |")


def test_the_others_are_missed_openly() -> None:
    text = page(document(case("ours", 100), without_others="not installed"))
    assert text.endswith("## What did not run\n\n* the others: not installed\n")
