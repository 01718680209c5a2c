"""The benchmark works: measures in fresh processes, writes its page, and writes it anew from the results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.page import page
from tests.support.command import ROOT

_PAGE = ROOT / "docs" / "performance.md"


def bench(*arguments: str, module: str = "bench") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_one_command_measures_and_writes_the_page(tmp_path: Path) -> None:
    """Work W by ours and by the floor, and its steps, on SQLite; no figure is judged."""
    target = tmp_path / "page.md"
    done = bench("--quick", "--no-peers", "--only", "W,steps", "--engine", "sqlite", "--write", str(target))
    assert 0 == done.returncode, done.stderr

    results = json.loads(target.with_suffix(".json").read_text())
    measured = {case["name"]: case["found"][0] for case in results["cases"]}
    assert {"floor", "ours", "steps"} == set(measured)
    layers = measured.pop("steps")
    assert 8 == layers.pop("steps") and all(cost > 0 for cost in layers.values())
    assert all(
        found["runs"] > 0 and found["runs_per_s"] > 0 and found["rows_per_run"] >= 8 for found in measured.values()
    )
    assert target.read_text() == done.stdout.removesuffix("\n") == page(results)
    assert "| **regate** |" in done.stdout


def test_what_cannot_run_says_why() -> None:
    """Those we compare with are not in the project's own environment."""
    done = bench("dbos", "--runs", "1", module="bench.case")
    assert 1 == done.returncode
    assert "ModuleNotFoundError" in json.loads(done.stdout)["error"]


def test_the_page_is_what_its_results_render_to() -> None:
    """Run `python -m bench --render` after a change of the page's texts or of bench/notes.md."""
    assert page(json.loads(_PAGE.with_suffix(".json").read_text())) == _PAGE.read_text(encoding="utf-8")
