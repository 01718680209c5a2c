"""Writes docs/performance.md from results. What is told by hand stands in bench/notes.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.plan import PEERS
from bench.results import Results, cell

__all__ = ["page"]

_NOTES: Final = Path(__file__).with_name("notes.md")
_ENGINE: Final = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
_NAME: Final = {
    "ours": "**regate**",
    "floor": "floor",
    "langgraph": "LangGraph, default durability",
    "langgraph-exit": "LangGraph, durability `exit`",
    "pydantic-ai": "pydantic-ai",
    "openai-agents": "OpenAI Agents SDK",
    "dbos": "DBOS",
}
_WORK_W: Final = """## Work W

Three model calls, one read-only tool, one write that a person approves; the run is suspended into the database and
resumed from it. The scripted model answers at once, so all that is measured is what goes on around it."""
_STEPS: Final = """## A step

Processor time of one step of work W, layer by layer, in microseconds. The machine with its gate is the bare loop: what
a library does that keeps nothing. Everything below it is what it costs that nothing is lost, and that everything can be
shown later. Commits are those of 50 runs at once; the database server's own time is not in them.

"""
_LAYERS: Final = (
    ("machine_us", "the machine with its gate"),
    ("entry_us", "+ its journal entry, and the entry's clear side"),
    ("chain_us", "+ the hash chain"),
    ("seal_us", "+ packing and sealing"),
    ("rest_us", "+ the row, exposures, audit, sources and, where it rests, the sealed state"),
    ("commit_us", "+ the commit, shared with other runs"),
    ("total_us", "**= a step**"),
)
_LONG_RUN: Final = """## A long run

200 model calls by regate; a tool gives 1 KB of new text in each round, words made up by chance.

"""
_END_TO_END: Final = """## End to end

One process enqueues and answers, Valkey carries the wake-ups, one `regate worker` does the work. Of fewer than a
hundred values the p99 is the largest.

"""
_MANY: Final = """## Many at once

A run that waits for a person is a row and holds nothing. What holds memory is a run whose model takes its time: here
many of them in one process, and work W, 50 at a time, in the same process.

"""
_WORKERS: Final = """## Worker processes

Work W through Valkey, 50 at a time, runs/s. The workers share the machine's cores with the process that enqueues and
answers, with Valkey and with the database's server.

"""
_Row = Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """A goal: a median that is at least, or at most, a bound."""

    what: str
    values: Sequence[float]
    bound: float
    at_least: bool
    form: str = ".1f"
    unit: str = ""

    def row(self) -> _Row:
        wanted = f"{'≥' if self.at_least else '≤'} {self.bound:g}{self.unit}"
        if not self.values:
            return (self.what, wanted, "did not run", "–")
        median = statistics.median(self.values)
        met = median >= self.bound if self.at_least else median <= self.bound
        return (self.what, wanted, cell(self.values, self.form, self.unit), "✓" if met else "missed")


def page(document: Mapping[str, Any]) -> str:
    """Render the whole page."""
    results = Results(document)
    parts = [_head(document), *_sections(results), _how(results)]
    parts.append(_NOTES.read_text().strip() if _NOTES.exists() else "")
    if told := [*_without(document), *results.errors()]:
        parts.append("## What did not run\n\n" + "\n".join(f"* {line}" for line in told))
    return "\n\n".join(part for part in parts if part) + "\n"


def _without(document: Mapping[str, Any]) -> list[str]:
    reason = document["without_others"]
    return [] if reason is None else [f"the others: {reason}"]


def _head(document: Mapping[str, Any]) -> str:
    rounds = document["rounds"]
    machine = "\n".join(f"| {name} | {value} |" for name, value in document["machine"].items())
    return f"""# Performance

Written by `python -m bench` on {document["date"]}; do not edit. The figures are in `performance.json` beside this page.

Interleaved rounds: {rounds}. In each, every case runs once, in a fresh process. A cell is the median with (least–most).
Ratios are taken within a round, so that what slows the machine for a while slows both sides. The absolute figures are
this machine's:

| | |
|---|---|
{machine}"""


def _sections(results: Results) -> Iterator[str]:
    yield "## Targets\n\n" + _table(("target", "wanted", "measured", ""), [t.row() for t in _targets(results)])
    yield from _work_w(results)
    yield _steps(results)
    yield _long_run(results)
    yield _latency(results)
    yield _many(results)
    yield _workers(results)


def _targets(results: Results) -> Iterator[_Target]:
    for engine in results.engines:
        on = f"on {_ENGINE[engine]}, 50 at a time"

        def against(name: str, times: float, engine: str = engine, on: str = on) -> _Target:
            ratios = results.ratios("ours", name, engine)
            return _Target(
                what=f"runs/s against {_NAME[name]} {on}", values=ratios, bound=times, at_least=True, unit="×"
            )

        if "ours" in results.names():
            floor = results.ratios("floor", "ours", engine)
            yield _Target(what=f"the floor's runs/s against ours {on}", values=floor, bound=2, at_least=False, unit="×")
            yield against("langgraph", 10 if engine == "postgresql" else 6)
            yield against("langgraph-exit", 6 if engine == "postgresql" else 4)
            yield against("dbos", 25)
        yield from _other_targets(results, engine)


def _other_targets(results: Results, engine: str) -> Iterator[_Target]:
    on = f"on {_ENGINE[engine]}"
    if "rounds" in results.names():
        kept = [
            payload / content
            for payload, content in zip(
                results.values("rounds", engine, "payload_bytes", 1),
                results.values("rounds", engine, "content_bytes", 1),
                strict=True,
            )
        ]
        yield _Target(
            what=f"stored bytes of a long run against its texts {on}",
            values=kept,
            bound=1.3,
            at_least=False,
            form=".2f",
            unit="×",
        )
    if "waiting" in results.names():
        held = results.values("waiting", engine, "rss_mb")
        what = f"memory of a process with 5,000 waiting runs {on}"
        yield _Target(what=what, values=held, bound=300, at_least=False, form=".0f", unit=" MB")
    if "idle" in results.names():
        woken = results.values("idle", engine, "p50_ms", 1)
        what = f"from `enqueue` to an idle worker's send, p50 {on}"
        yield _Target(what=what, values=woken, bound=50, at_least=False, form=".0f", unit=" ms")


def _work_w(results: Results) -> Iterator[str]:
    names = [name for name in _NAME if name in results.names()]
    if not names:
        return
    yield _WORK_W
    head = ("", "runs/s, 1 at a time", "50", "500", "CPU ms per run, at 50", "rows per run", "disk KB per run")
    for engine in results.engines:
        rows = [
            (
                _NAME[name],
                *(cell(results.values(name, engine, "runs_per_s", many)) for many in (1, 50, 500)),
                cell(results.values(name, engine, "cpu_ms_per_run"), ".2f"),
                cell(results.values(name, engine, "rows_per_run"), ".0f"),
                cell([b / 1000 for b in results.values(name, engine, "disk_bytes_per_run")], ".1f"),
            )
            for name in names
        ]
        yield f"### On {_ENGINE[engine]}\n\n" + _table(head, rows)
    if others := [name for name in names if name != "ours"]:
        columns = [(engine, many) for engine in results.engines for many in (1, 50)]
        forms = [(name, ".2f" if name == "floor" else ".1f") for name in others]
        ratios = [
            (_NAME[name], *(cell(results.ratios("ours", name, e, concurrency=many), form) for e, many in columns))
            for name, form in forms
        ]
        wide = ("regate's runs/s against", *(f"{_ENGINE[engine]}, {many} at a time" for engine, many in columns))
        yield "### Ratios\n\n" + _table(wide, ratios)


def _steps(results: Results) -> str:
    if "steps" not in results.names():
        return ""
    rows = [
        (what, *(cell(results.values("steps", engine, field), ".1f") for engine in results.engines))
        for field, what in _LAYERS
    ]
    return _STEPS + _table(("", *(_ENGINE[engine] for engine in results.engines)), rows)


def _long_run(results: Results) -> str:
    if "rounds" not in results.names():
        return ""

    def kilo(engine: str, field: str) -> str:
        return cell([value / 1000 for value in results.values("rounds", engine, field, 1)])

    rows = [
        (
            _ENGINE[engine],
            cell(results.values("rounds", engine, "seconds", 1), ".2f"),
            cell(results.values("rounds", engine, "cpu_s", 1), ".2f"),
            kilo(engine, "content_bytes"),
            kilo(engine, "payload_bytes"),
            kilo(engine, "disk_bytes"),
        )
        for engine in results.engines
    ]
    return _LONG_RUN + _table(("", "seconds", "CPU s", "texts, KB", "sealed payloads, KB", "disk, KB"), rows)


def _latency(results: Results) -> str:
    cases = (
        ("redis", 50, "three model calls and two reads, 50 at a time: created to completed"),
        ("approve", 1, "approval to the next send, one at a time"),
        ("approve", 50, "approval to the next send, 50 at a time"),
        ("idle", 1, "`enqueue` to the send of a worker that was idle"),
    )
    wanted = [case for case in cases if case[0] in results.names()]
    if not wanted:
        return ""
    rows = [
        (
            _ENGINE[engine],
            what,
            cell(results.values(name, engine, "runs_per_s", many)),
            cell(results.values(name, engine, "p50_ms", many), ",.0f"),
            cell(results.values(name, engine, "p99_ms", many), ",.0f"),
        )
        for engine in results.engines
        for name, many, what in wanted
    ]
    return _END_TO_END + _table(("", "", "runs/s", "p50, ms", "p99, ms"), rows)


def _many(results: Results) -> str:
    if "waiting" not in results.names():
        return ""
    rows = [
        (
            _ENGINE[engine],
            cell(results.values("waiting", engine, "waiting")),
            cell(results.values("waiting", engine, "rss_mb")),
            cell(results.values("waiting", engine, "kb_per_waiting_run"), ".1f"),
            cell(results.values("waiting", engine, "runs_per_s")),
            cell(results.values("waiting", engine, "runs_per_s_alone")),
        )
        for engine in results.engines
    ]
    head = ("", "waiting runs", "memory, MB", "KB per waiting run", "runs/s of W beside them", "without them")
    return _MANY + _table(head, rows)


def _workers(results: Results) -> str:
    if "workers" not in results.names():
        return ""
    rows = [
        (_ENGINE[engine], *(cell(results.values("workers", engine, "runs_per_s", 50, n)) for n in (1, 2, 4)))
        for engine in results.engines
    ]
    return _WORKERS + _table(("", "1 worker", "2", "4"), rows)


def _how(results: Results) -> str:
    versions = ", ".join(
        told for name in PEERS if name != "langgraph-exit" and (told := results.words(name, "version"))
    )
    compared = f"\n* Compared with: {versions}." if versions else ""
    return f"""## How it is measured

* The same durability for all: SQLite in WAL mode with `synchronous = FULL`; PostgreSQL as the table above says, on the
  same machine and disk.{compared}
* CPU is the user and system time of the measuring process with all its threads; a database server's is not in it.
  Bytes on disk have indexes in them, and on PostgreSQL row versions that were not vacuumed yet.
* **regate** is the product: stored, claimed, driven, suspended, answered through `Runtime.decide`, claimed again,
  completed; with the gate, sealing and the chain. In work W its wake-ups stay in the process; end to end they go
  through Valkey.
* **The floor** is the same work by hand with SQLAlchemy Core and group commit, with as many durable steps, and nothing
  else: no gate, sealing, chain, leases, schema checks or recovery.
* **LangGraph**: a graph of two nodes, `interrupt`, `AsyncSqliteSaver` or `AsyncPostgresSaver` with a pool of 16.
  Its default writes behind the work; `exit` writes only at the interrupt and the end.
* **pydantic-ai**: a deferred tool; the messages of each step, and the history at the rest, as JSON through SQLAlchemy.
* **OpenAI Agents SDK**: `needs_approval`, its SQLAlchemy session, `RunState` as JSON while the run waits; no tracing.
* **DBOS**: model calls and tools are steps, the approval is received. A waiting workflow stays in memory, which is its
  way. On SQLite it is given WAL, and looks for messages every 10 ms instead of every second."""


def _table(head: _Row, rows: Sequence[_Row]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
