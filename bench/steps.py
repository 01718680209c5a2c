"""What a step of ours costs, layer by layer: the machine alone, then its entry, the chain, the seal, and the commit.

The steps are those of a run of work W that was driven for real: its journal is read back and its events folded anew.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from bench.installation import SCRIPT, Bench, open_bench, request
from bench.measuring import Case, pooled, usage
from codec.events import Event
from codec.journal import ENTRY_VERSION, Entry, reference
from codec.suspended import SuspendedRunState
from codec.vocabulary import Origin
from worker.core.chain import GENESIS
from worker.core.machine import step
from worker.ports.records import Append, Claimed, CommitStatus, EntryRow, RunFilter
from worker.runtime.hold import Hold
from worker.runtime.journalling import append_of, entry_link, entry_place
from worker.runtime.load import entry_at
from worker.runtime.metadata import Stepped, meta_of
from worker.runtime.parts import Parts
from worker.runtime.segments import hold_of

__all__ = ["measure"]

_REPEATS: Final = 7
_ROUNDS: Final = 300
"""Times that the run's steps are done in one repeat: tens of milliseconds."""
_WARM: Final = 20


async def measure(case: Case) -> dict[str, Any]:
    """Give processor time per step in microseconds: of each layer the least of some repeats, of commits the mean."""
    async with open_bench(case, {"w": {"reply": SCRIPT}}) as bench:
        await pooled(1, _WARM, case.seconds, bench.work_w)
        hold, events = await _driven(bench)
        repeats = [_repeat(bench.runtime.parts, hold, events) for _ in range(_REPEATS)]
        found = {f"{name}_us": min(one[name] for one in repeats) / len(events) for name in repeats[0]}
        found["rest_us"] = found.pop("written_us") - sum(found[f"{name}_us"] for name in ("entry", "chain", "seal"))
        found["commit_us"] = await _commit_us(bench, case, hold, events)
    return {"steps": len(events), **found, "total_us": sum(found.values())}


async def _driven(bench: Bench) -> tuple[Hold, list[Event]]:
    """Read back the events of a run that has ended, and take it in hand as its first segment did."""
    parts = bench.runtime.parts
    [row] = await parts.store.runs(RunFilter(limit=1))
    hold = hold_of(parts, Claimed(row=row, token=parts.clock.nonce(), was=row.status, expired=False))
    hold.seq, hold.head = 0, GENESIS
    stored = await parts.store.entries(row.uid)
    return hold, [entry_at(parts.sealer, row, hold.key, one).event for one in stored]


def _folded(events: Sequence[Event]) -> list[Stepped]:
    """Do the steps of a run. Each time anew, since what is computed of a state is remembered with it."""
    state: SuspendedRunState | None = None
    steps = []
    for event in events:
        steps.append(Stepped(before=state, event=event, result=step(state, event)))
        state = steps[-1].result.state
    return steps


def _repeat(parts: Parts, hold: Hold, events: Sequence[Event]) -> dict[str, float]:
    """Do all layers of many runs, one layer after the other; gives microseconds per run.

    `written` does all that is done between the machine and the commit.
    """
    seal, key, uuid = parts.sealer.seal, hold.key, hold.row.uuid
    taken: dict[str, float] = {}

    def layer(name: str, work: Callable[[Any], Any], of: Sequence[Any]) -> list[Any]:
        began = time.process_time()
        done = [work(one) for one in of]
        taken[name] = 1e6 * (time.process_time() - began) / _ROUNDS
        return done

    gc.disable()
    try:
        runs = layer("machine", _folded, [events] * _ROUNDS)
        steps = [one for run in runs for one in run]
        layer("written", lambda one: append_of(hold, parts.sealer, [one], retry_s=()), steps)
        entries = layer("entry", lambda one: (_entry(one), _row(hold, one)), steps)
        rows = [row for _, row in entries]
        places = layer("chain", lambda row: (entry_place(row), entry_link(uuid, hold.token, row)), rows)
        layer(
            "seal", lambda one: seal(key, "entry", uuid, one[1][0], one[0][0]), list(zip(entries, places, strict=True))
        )
    finally:
        gc.enable()
    return taken


def _entry(stepped: Stepped) -> bytes:
    result = stepped.result
    commands = tuple(reference(command) for command in result.commands)
    entry = Entry(version=ENTRY_VERSION, event=stepped.event, commands=commands, decisions=result.decisions)
    return entry.encode()


def _row(hold: Hold, stepped: Stepped) -> EntryRow:
    meta = msgspec.json.encode(meta_of(stepped)).decode()
    return EntryRow(seq=1, kind="step", segment=1, policy=1, prev=hold.head, meta=meta, payload=b"")


async def _commit_us(bench: Bench, case: Case, hold: Hold, events: Sequence[Event]) -> float:
    """Commit the steps up to the run's first rest, for many runs at once, as their drivers do."""
    appends = []
    for stepped in _folded(events):
        append = append_of(hold, bench.runtime.parts.sealer, [stepped], retry_s=())
        if append.release:
            break
        appends.append(append)
        hold.seq, hold.head = hold.seq + 1, append.head
    before = usage()
    runs = await pooled(case.concurrency, case.runs, case.seconds, lambda: _committed(bench, appends))
    created = usage()
    await pooled(case.concurrency, runs, case.seconds, lambda: _committed(bench, []))
    after = usage()
    spent = (created.cpu_s - before.cpu_s) - (after.cpu_s - created.cpu_s)
    return 1e6 * spent / (runs * len(appends))


async def _committed(bench: Bench, appends: Sequence[Append]) -> None:
    """Create a run as held by somebody, and commit these steps as its own."""
    store = bench.runtime.parts.store
    new = await bench.runtime.prepare(request(), Origin.API, claim=True)
    row, _ = await store.create(new)
    for append in appends:
        commit = await store.commit(msgspec.structs.replace(append, run_uid=row.uid, token=row.token or ""))
        assert commit.status is CommitStatus.COMMITTED, commit
