"""The one command: measure, print the page, write it.

python -m bench --install        the others, once, into .venv-bench
python -m bench                  everything; writes docs/performance.md and docs/performance.json
python -m bench --quick          see that it works; the figures mean nothing
python -m bench --render         write the page anew from the results, measuring nothing
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench import others
from bench.machine import described
from bench.page import page
from bench.plan import ENGINES, GROUPS, PEERS, plans
from bench.running import measure
from tests.support.postgres import server

__all__ = ["main"]

_PAGE: Final = Path(__file__).parents[1] / "docs" / "performance.md"


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the arguments say; 1 when a case of ours did not run."""
    given = _parser().parse_args(argv)
    if given.install:
        others.install()
        return 0
    target: Path | None = given.write
    if given.render:
        target = target or _PAGE
        target.write_text(page(json.loads(target.with_suffix(".json").read_text())))
        return 0
    engines, groups = given.engine, given.only
    missing = others.missing()
    peers = given.peers and missing is None
    whole = not given.quick and peers and set(engines) == set(ENGINES) and set(groups) == set(GROUPS)
    results = _measured(given, engines, groups, missing if given.peers else "not asked for")
    text = page(results)
    print(text)
    target = target or (_PAGE if whole else None)
    if target is not None:
        target.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
        target.write_text(text)
    ours = (case for case in results["cases"] if case["name"] not in PEERS)
    return int(any("error" in found for case in ours for found in case["found"]))


def _measured(given: argparse.Namespace, engines: list[str], groups: list[str], without: str | None) -> dict[str, Any]:
    planned = plans(engines, groups, peers=without is None, quick=given.quick)
    rounds = 1 if given.quick else given.rounds
    with tempfile.TemporaryDirectory(prefix="regate-bench-", dir=given.dir) as name:
        postgres = server(durable=True) if "postgresql" in engines else None
        machine = described(Path(name), postgres)
        cases = measure(planned, rounds, Path(name))
    today = datetime.now(UTC).date().isoformat()
    return {"date": today, "rounds": rounds, "machine": machine, "without_others": without, "cases": cases}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--install", action="store_true", help="install the others and end")
    parser.add_argument("--render", action="store_true", help="write the page from the stored results and end")
    parser.add_argument("--quick", action="store_true", help="one short round")
    for name, known in (("--only", GROUPS), ("--engine", ENGINES)):
        parser.add_argument(name, type=partial(_some, known), default=list(known), help=f"of {','.join(known)}")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often everything is measured")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help="measure the others too")
    parser.add_argument(
        "--dir", type=Path, help="where SQLite's files lie; default: the temporary folder (TMPDIR), as for PostgreSQL's"
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="the page, with FILE.json beside it; a whole run writes it unasked"
    )
    return parser


def _some(known: Sequence[str], given: str) -> list[str]:
    """Read names separated by commas."""
    names = given.split(",")
    if unknown := set(names) - set(known):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not of {','.join(known)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
