"""What the doctor says of runs: which are stuck, which wait for somebody without an end, which have failed, and why."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from codec.suspended import STATE_VERSION
from codec.vocabulary import FINAL_STATUSES, WAITING_STATUSES, QuestionKind, RunStatus
from worker.bootstrap import Installation
from worker.cli.documents import blocked_of
from worker.cli.findings import Finding, ok, warning
from worker.cli.texts import in_words, plural
from worker.cli.wording import WAITS_FOR, blocked_sentence
from worker.ports.records import RunFilter, RunRow
from worker.runtime.suspects import SUSPECT

__all__ = ["dead_runs", "stuck_runs", "suspected_runs", "waiting_runs"]

_MOST_RUNS: Final = 20
"""Stuck runs that are told one by one; more would hide the other findings."""
_SWEEPS: Final = 3
"""Sweeps after which a run that is still due is told: one finds it, another finds it again when a message was lost."""
_UNFINISHED: Final = tuple(status for status in RunStatus if status not in FINAL_STATUSES)


async def stuck_runs(opened: Installation) -> AsyncIterator[Finding]:
    """Tell of runs that go on only when something changes: blocked ones, and those that no process here can open."""
    parts = opened.runtime.parts
    stuck = 0
    for row in await parts.store.runs(RunFilter(statuses=_UNFINISHED)):
        blocked = blocked_of(row, parts.sealer.key_ids, STATE_VERSION)
        if blocked is None:
            continue
        stuck += 1
        if stuck <= _MOST_RUNS:
            yield warning(f"run {row.uuid}", f"blocked: {blocked_sentence(blocked)}")
    if stuck > _MOST_RUNS:
        yield warning("more runs", f"{stuck - _MOST_RUNS} more are blocked: regate runs tells which")
    if not stuck:
        yield ok("runs", "none is blocked")


async def waiting_runs(opened: Installation) -> AsyncIterator[Finding]:
    """Tell of runs that wait for a person without an end, and of runs that are due and taken by nobody."""
    parts = opened.runtime.parts
    now = await parts.store.now()
    rows = await parts.store.runs(RunFilter(statuses=_UNFINISHED))
    rows = [row for row in rows if blocked_of(row, parts.sealer.key_ids, STATE_VERSION) is None]
    found = [
        *(_asking([row for row in rows if _asks_for_ever(row, kind)], kind, now) for kind in QuestionKind),
        _overdue([row for row in rows if _is_overdue(row, now, parts.figures.sweep_s)], now),
    ]
    told = [finding for finding in found if finding is not None]
    for finding in told:
        yield finding
    if not told:
        yield ok("waiting", "no run waits without an end")


def _asks_for_ever(row: RunRow, kind: QuestionKind) -> bool:
    asks = row.status in WAITING_STATUSES and row.question_kind is kind
    return asks and row.expires_at is None and row.answered_by is None


def _asking(rows: list[RunRow], kind: QuestionKind, now: float) -> Finding | None:
    if not rows:
        return None
    oldest = min(rows, key=lambda row: row.updated_at)
    return warning(
        f"waiting for {kind.value}",
        f"{plural(len(rows), 'run')}, for which {WAITS_FOR[kind]} and no time is set; "
        f"the oldest since {in_words(now - oldest.updated_at)}: {oldest.uuid}",
    )


def _is_overdue(row: RunRow, now: float, sweep_s: float) -> bool:
    return row.due_at is not None and row.due_at < now - _SWEEPS * sweep_s


def _overdue(rows: list[RunRow], now: float) -> Finding | None:
    if not rows:
        return None
    oldest = min(rows, key=lambda row: row.due_at or 0.0)
    return warning(
        "due",
        f"{plural(len(rows), 'run is', 'runs are')} due and taken by nobody, the oldest for "
        f"{in_words(now - (oldest.due_at or now))}: {oldest.uuid}; start a worker, or give it more runs",
    )


async def suspected_runs(opened: Installation) -> AsyncIterator[Finding]:
    """Tell of runs that may be killing their workers: claimed again and again, and none the further for it."""
    rows = await opened.runtime.parts.store.runs(RunFilter(statuses=_UNFINISHED))
    suspects = [row for row in rows if _deaths(row) > SUSPECT]
    if not suspects:
        yield ok("suspects", "no run comes to nothing again and again")
        return
    worst = max(suspects, key=_deaths)
    yield warning(
        "suspects",
        f"{plural(len(suspects), 'run')} came no further in more than {SUSPECT} segments, and may be killing their "
        f"workers; most often, {plural(_deaths(worst), 'time')}: {worst.uuid}",
    )


def _deaths(row: RunRow) -> int:
    return row.in_vain - (row.token is not None)  # the segment under way may still come further


async def dead_runs(opened: Installation) -> AsyncIterator[Finding]:
    """Tell of failed runs that a person may continue."""
    dead = await opened.runtime.parts.store.runs(RunFilter(dead=True))
    if dead:
        yield warning("dead runs", f"{plural(len(dead), 'failed run')} can be requeued: regate runs --dead")
    else:
        yield ok("dead runs", "none")
