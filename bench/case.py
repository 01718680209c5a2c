"""One measurement in a process of its own: prints one line of JSON. `python -m bench` starts many of these.

python -m bench.case ours --engine sqlite --concurrency 50 --runs 500
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from bench.measuring import Case

__all__ = ["CASES", "main"]

CASES: Final = {
    "ours": "bench.ours:measure",
    "floor": "bench.floor:measure",
    "langgraph": "bench.peers.langgraph:measure_default",
    "langgraph-exit": "bench.peers.langgraph:measure_exit",
    "pydantic-ai": "bench.peers.pydantic_ai:measure",
    "openai-agents": "bench.peers.openai_agents:measure",
    "dbos": "bench.peers.dbos:measure",
    "rounds": "bench.rounds:measure",
    "steps": "bench.steps:measure",
    "waiting": "bench.waiting:measure",
    "redis": "bench.processes:measure_redis",
    "approve": "bench.processes:measure_approve",
    "idle": "bench.processes:measure_idle",
    "workers": "bench.processes:measure_workers",
}
"""Each name's function, imported when it is wanted: it takes the case and gives figures."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    given = _parser().parse_args(argv)
    with _place(given) as case:
        try:
            module, _, function = CASES[given.name].partition(":")
            more = {"workers": given.workers} if given.name == "workers" else {}
            found = asyncio.run(getattr(import_module(module), function)(case, **more))
        except Exception as error:  # noqa: BLE001 - told in the table
            found = {"error": _told(error)}
    print(json.dumps({"case": case.name, "engine": case.engine, "concurrency": case.concurrency, **found}))
    return "error" in found


def _told(error: BaseException) -> str:
    """Give the first of what went wrong: fifty runs that fail at once fail in the same way."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    traceback.print_exception(error)
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.case", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("name", choices=sorted(CASES))
    parser.add_argument("--engine", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--concurrency", type=int, default=50)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no run after this time")
    parser.add_argument("--workers", type=int, default=1, help="processes, for `workers`")
    parser.add_argument("--dir", type=Path, help="where the folder of the case is made; default: the system's")
    parser.add_argument("--url", help="an empty PostgreSQL database; without it a server is started")
    return parser


@contextmanager
def _place(given: argparse.Namespace) -> Iterator[Case]:
    with tempfile.TemporaryDirectory(prefix="rb-", dir=given.dir) as name, _database(given, Path(name)) as url:
        yield Case(
            name=given.name,
            engine=given.engine,
            url=url,
            folder=Path(name),
            concurrency=given.concurrency,
            runs=given.runs,
            seconds=given.seconds,
        )


@contextmanager
def _database(given: argparse.Namespace, folder: Path) -> Iterator[str]:
    if given.engine == "sqlite":
        yield f"sqlite:///{folder / 'regate.db'}"
    elif given.url:
        yield given.url
    else:
        postgres: Any = import_module("tests.support.postgres")  # not at the top: peers have no such package
        with postgres.server(durable=True).empty() as url:
            yield url


if __name__ == "__main__":
    sys.exit(main())
