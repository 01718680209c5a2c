"""Runs each case in a fresh process, one after the other, and keeps what it printed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from bench.others import PYTHON
from bench.plan import PEERS, Plan
from tests.support.postgres import Server, server

__all__ = ["measure"]

_ROOT: Final = Path(__file__).parents[1]
_CASE_S: Final = 120.0
"""Seconds that one case may take, with its start and its end."""


def measure(plans: Sequence[Plan], rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Run all cases once, then all of them again: what disturbs the machine for a while disturbs everybody."""
    found: list[list[dict[str, Any]]] = [[] for _ in plans]
    began = time.monotonic()
    durable = server(durable=True) if any(plan.engine == "postgresql" for plan in plans) else None
    for turn in range(1, rounds + 1):
        for plan, results in zip(plans, found, strict=True):
            result = _run(plan, folder, durable)
            results.append(result)
            gist = result.get("error") or _gist(result)
            print(
                f"[{time.monotonic() - began:4.0f} s] {turn}/{rounds} {plan.label}: {gist}", file=sys.stderr, flush=True
            )
    return [
        {
            "name": plan.name,
            "engine": plan.engine,
            "concurrency": plan.concurrency,
            "workers": plan.workers,
            "found": results,
        }
        for plan, results in zip(plans, found, strict=True)
    ]


def _run(plan: Plan, folder: Path, durable: Server | None) -> dict[str, Any]:
    place = nullcontext("") if durable is None or plan.engine != "postgresql" else durable.empty()
    python = str(PYTHON) if plan.name in PEERS else sys.executable
    with place as url:
        command = [python, "-m", "bench.case", plan.name, *_options(plan), "--dir", str(folder), "--url", url]
        with _group(command) as process:
            try:
                out, err = process.communicate(timeout=_CASE_S)
            except subprocess.TimeoutExpired:
                return {"error": f"took longer than {_CASE_S:.0f} s"}
    try:
        printed: dict[str, Any] = json.loads(out)
    except ValueError:
        return {"error": (err.strip().splitlines() or ["printed nothing"])[-1][:200]}
    return {name: value for name, value in printed.items() if name not in ("case", "engine", "concurrency", "workers")}


def _options(plan: Plan) -> Iterator[str]:
    for name in ("engine", "concurrency", "runs", "seconds", "workers"):
        yield from (f"--{name}", str(getattr(plan, name)))


@contextmanager
def _group(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a process in a group of its own, so that its workers end with it."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=_ROOT, start_new_session=True, **pipes)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close() if process.stdout else None
        process.stderr.close() if process.stderr else None


def _gist(result: dict[str, Any]) -> str:
    for name, form in (("runs_per_s", "{:.0f} runs/s"), ("p50_ms", "p50 {:.1f} ms"), ("seconds", "{:.2f} s")):
        if name in result:
            return form.format(result[name])
    return "done"
