"""A whole installation in a folder, for tests of the runtime: real database, ring, catalogue, tools and driver.

Only the model is scripted and wake-ups stay inside the process. `open_world` checks, at its end, what must hold after
any test: runs ended or wait for a reason, journals are whole and replay equal, nothing was executed twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
import tomli_w

from codec.actor import LOCAL, Actor
from codec.answers import OutcomeWord
from codec.events import CallVerdict
from codec.request import AgentRunRequest, RunAugmentation
from codec.suspended import SuspendedRunState
from codec.vocabulary import FINAL_STATUSES, STATUS_OF, WAITING_STATUSES, Phase, QuestionKind, RunStatus
from codec.wire import Shown
from tests.support.example_tools import LEDGER
from tests.support.standing import chosen_url
from worker.adapters.catalogue_file import read_catalogue
from worker.adapters.models.registry import ModelRegistry
from worker.adapters.models.scripted import ScriptedModels
from worker.adapters.sealing import RingSealer
from worker.adapters.sql.catalogue import SqlCatalogue
from worker.adapters.sql.engine import Database
from worker.adapters.sql.keys import ensure_ring
from worker.adapters.sql.migrate import migrate
from worker.adapters.sql.store import SqlRunStore
from worker.adapters.system import SystemClock
from worker.adapters.tools.toolbox import PythonToolbox
from worker.ports.catalogue import RecordSpec
from worker.ports.clock import Clock
from worker.ports.models import Models
from worker.ports.records import AuditRow, EntryRow, RunFilter, RunRow
from worker.runtime.answers import Verdicts
from worker.runtime.feed import PolicyFeed
from worker.runtime.host import Host
from worker.runtime.load import damaged_at
from worker.runtime.parts import Figures, Parts
from worker.runtime.service import Runtime, at_rest
from worker.runtime.sweeper import sweep_forever, sweep_once
from worker.runtime.views import look_inside

__all__ = ["CATALOGUE", "TOOLS", "LocalSignals", "World", "call", "eventually", "merged", "open_world", "reply"]

TOOLS: Final = ("tests.support.example_tools", "tests.support.world_tools")
CATALOGUE: Final[dict[str, Any]] = {
    "provider": [
        {"identifier": "house", "kind": "scripted", "script": "script.toml", "trust_zone": "local"},
        {"identifier": "eu", "kind": "scripted", "script": "script.toml", "trust_zone": "external_eu"},
        {"identifier": "world", "kind": "scripted", "script": "script.toml", "trust_zone": "external_global"},
    ],
    "configuration": [
        {"identifier": "support", "provider": "house", "model": "m", "system_prompt": "You answer."},
        {"identifier": "spare", "provider": "world", "model": "m2"},
    ],
    "snippet": [
        {"identifier": "incident", "label": "Incident", "text": "The incident.", "data_class": "secret_adjacent"},
        {"identifier": "tone", "label": "Tone", "text": "Be kind.", "data_class": "public_content"},
    ],
    "skill": [
        {"identifier": "refunds", "name": "Refunds", "body": "Refund rules.", "data_class": "internal_configuration"},
    ],
}
_BYTES: Final = re.compile(r"x'([0-9a-f]*)'")
_UNSETTLED: Final = 20.0
"""Seconds that a test waits for anything at all; more means that it will not happen."""


def reply(text: str = "", *calls: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Build one scripted reply."""
    found: dict[str, Any] = {"text": text} if text else {}
    return found | ({"tool_calls": list(calls)} if calls else {}) | more


def call(name: str, identity: str = "c1", **arguments: Any) -> dict[str, Any]:
    """Build one call of a scripted reply."""
    return {"id": identity, "name": name, "arguments": arguments}


def merged(document: Mapping[str, Any], **changes: Mapping[str, Any]) -> dict[str, Any]:
    """Change fields of records by `kind__identifier={…}`; a field of None is taken out."""
    found: dict[str, Any] = {kind: [dict(r) for r in records] for kind, records in document.items() if kind != "policy"}
    found |= {"policy": dict(document["policy"])} if "policy" in document else {}
    for name, fields in changes.items():
        kind, _, identifier = name.partition("__")
        if kind == "policy":
            found["policy"] = dict(fields)
            continue
        records = found.setdefault(kind, [])
        record = next((r for r in records if r["identifier"] == identifier), None)
        if record is None:
            record = {"identifier": identifier}
            records.append(record)
        record.update(fields)
        for key in [k for k, v in record.items() if v is None]:
            del record[key]
    return found


async def eventually(
    condition: Callable[[], Awaitable[Any] | Any], what: str, *, seconds: float = _UNSETTLED, every: float = 0.005
) -> Any:
    """Wait until a condition holds and give its value; fail after a deadline."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(every)


class LocalSignals:
    """Wake-ups inside one process.

    `down` = they cannot be sent; `lost` = they are sent and arrive nowhere; `broken` = sending raises, as a bug would.
    """

    def __init__(self) -> None:
        self.host: Host | None = None
        self.down = False
        self.lost = False
        self.broken = False
        self.sent: list[str] = []

    async def wake(self, uuids: Sequence[str]) -> bool:
        """See the port."""
        if self.broken:
            raise RuntimeError
        if self.down:
            return False
        self.sent.extend(uuids)
        if self.host is not None and not self.lost:
            self.host.wake(uuids)
        return True


@dataclass(slots=True, kw_only=True)
class World:
    """An open installation. Everything that a test does to it or reads of it goes through here."""

    folder: Path
    database: Database
    store: SqlRunStore
    catalogue: SqlCatalogue
    parts: Parts
    host: Host
    runtime: Runtime
    signals: LocalSignals
    logs: list[tuple[str, dict[str, Any]]]
    damaged: set[str] = field(default_factory=set)
    unowned: set[str] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)

    # --- setting up

    async def apply(self, document: Mapping[str, Any]) -> None:
        """Make the catalogue hold exactly this document."""
        path = self.folder / "catalogue.toml"
        path.write_text(tomli_w.dumps(document))
        await self.catalogue.apply(read_catalogue(path), prune=True, actor="editor", via="cli")

    async def change(self, kind: str, identifier: str, **fields: Any) -> int:
        """Change fields of one record; gives the version after it."""
        spec = RecordSpec(kind=kind, identifier=identifier, fields=fields)
        return (await self.catalogue.change(spec, actor="editor", via="cli")).version

    async def delete(self, kind: str, identifier: str) -> None:
        """Delete a record."""
        await self.catalogue.delete(kind, identifier, actor="editor", via="cli")

    def script(self, *replies: Mapping[str, Any], name: str = "script.toml") -> None:
        """Write what the scripted model says, the n-th to a transcript of n-1 answers."""
        path = self.folder / name
        fresh = path.with_suffix(".new")
        fresh.write_text(tomli_w.dumps({"record": "sent.jsonl", "reply": list(replies)}))
        fresh.replace(path)

    async def actor(self, name: str, **fields: Any) -> Actor:
        """Create an actor and give it as it would arrive with a request."""
        await self.catalogue.add_actor({"name": name, **fields}, by="editor", via="cli")
        live = (await self.runtime.feed.current()).actors[name]
        return Actor(
            kind=live.kind,
            name=live.name,
            uid=live.uid,
            admin=live.admin,
            groups=live.groups,
            grants=live.grants,
            scopes=live.scopes,
        )

    async def uid(self, kind: str, identifier: str) -> int:
        """Give the uid of a living record."""
        snapshot = await self.runtime.feed.current()
        records: Any = getattr(snapshot, f"{kind}s")
        return int(next(uid for uid, record in records.items() if record.identifier == identifier))

    # --- running

    def ask(self, prompt: str = "hello", *, snippets: Sequence[int | str] = (), **changes: Any) -> AgentRunRequest:
        """Build a request; forced sources by name."""
        skills = changes.pop("skills", ())
        augmentation = changes.pop("augmentation", None)
        if augmentation is None and (snippets or skills):
            augmentation = RunAugmentation(forced_snippet_uids=tuple(snippets), forced_skill_uids=tuple(skills))
        fields = {"configuration": "support", "messages": ({"role": "user", "content": prompt},)} | changes
        return AgentRunRequest(augmentation=augmentation, **fields)

    async def run(self, request: AgentRunRequest | None = None) -> Shown:
        """Run synchronously to the next rest."""
        async with asyncio.timeout(_UNSETTLED):
            return await self.runtime.run(self.ask() if request is None else request)

    async def queue(self, request: AgentRunRequest | None = None) -> Shown:
        """Enqueue and wait for the next rest; this process drives it."""
        handle = await self.runtime.enqueue(self.ask() if request is None else request)
        return await self.rest(handle.uuid)

    async def rest(self, uuid: str, *, drive: bool = False) -> Shown:
        """Wait until a run rests; `drive` = this process sees to it."""

        async def rested() -> bool:
            row = await self.row(uuid)
            return at_rest(row)

        if drive:
            async with asyncio.timeout(_UNSETTLED):
                await self.runtime.drive(uuid)
        else:
            await eventually(rested, f"the run rests; it is {await self.row(uuid)}")
        return await self.show(uuid)

    async def show(self, uuid: str, actor: Actor = LOCAL) -> Shown:
        """Show a run."""
        return await self.runtime.show(actor, uuid)

    async def question(self, uuid: str) -> str:
        """Give the id of the open question."""
        waiting = (await self.show(uuid)).waiting
        assert waiting is not None
        return waiting.question

    async def decide(self, uuid: str, approve: bool = True, by: Actor = LOCAL, **more: Any) -> None:
        """Approve or deny everything that is asked, or give `calls`."""
        calls: dict[str, CallVerdict] = more.pop("calls", {})
        question = more.pop("question", None)
        question = await self.question(uuid) if question is None else question
        said = Verdicts(default=more.pop("default", approve), calls=calls, reason=more.pop("reason", None))
        assert not more
        await self.runtime.decide(by, uuid, question, said, via="test")

    async def submit(self, uuid: str, data: str, by: Actor = LOCAL, question: str | None = None) -> None:
        """Answer the open input question."""
        question = await self.question(uuid) if question is None else question
        await self.runtime.submit(by, uuid, question, data, via="test")

    async def settle(self, uuid: str, by: Actor = LOCAL, call: str = "c1", **word: Any) -> None:
        """Answer the open outcome question."""
        question = await self.question(uuid)
        await self.runtime.settle(by, uuid, question, OutcomeWord(call=call, **word), via="test")

    async def answer(self, uuid: str) -> None:
        """Say yes to whatever is asked."""
        waiting = (await self.show(uuid)).waiting
        assert waiting is not None
        if waiting.kind is QuestionKind.INPUT:
            await self.submit(uuid, '{"decision":"go"}')
        elif waiting.kind is QuestionKind.APPROVAL:
            await self.decide(uuid)
        else:
            await self.settle(uuid, call=waiting.calls[0].id, happened="it happened")

    async def sweep(self) -> int:
        """Sweep once."""
        return await sweep_once(self.parts, self.host.wake_oldest)

    # --- looking

    async def row(self, uuid: str) -> RunRow:
        """Give the hot row."""
        row = await self.store.run(uuid)
        assert row is not None
        return row

    async def state(self, uuid: str) -> SuspendedRunState:
        """Give the state as the journal has it."""
        inside = await look_inside(self.parts, await self.row(uuid))
        assert inside.state is not None
        return inside.state

    async def journal(self, uuid: str) -> list[EntryRow]:
        """Give the journal's rows."""
        return await self.store.entries((await self.row(uuid)).uid)

    async def kinds(self, uuid: str) -> list[str]:
        """Give the kinds of the journal's entries."""
        return [row.kind for row in await self.journal(uuid)]

    async def audit(self, uuid: str | None = None, decision: str | None = None) -> list[AuditRow]:
        """Give the audit's rows."""
        rows = await self.store.audit(uuid, None)
        return [row for row in rows if decision is None or row.decision == decision]

    def sent(self, uuid: str | None = None) -> list[dict[str, Any]]:
        """Give what the scripted providers received."""
        return [line for line in _lines(self.folder / "sent.jsonl") if uuid is None or line["run"] == uuid]

    def executed(self, uuid: str | None = None) -> list[dict[str, Any]]:
        """Give what tools executed."""
        return [line for line in _lines(self.folder / "ledger.jsonl") if uuid is None or line["run"] == uuid]

    async def select(self, statement: str, **parameters: Any) -> list[dict[str, Any]]:
        """Read the database as it is."""

        def read(connection: sa.Connection) -> list[dict[str, Any]]:
            return [dict(row._mapping) for row in connection.execute(sa.text(statement), parameters)]

        return await self.database.read(read)

    async def alter(self, statement: str, **parameters: Any) -> None:
        """Change the database behind everybody's back; bytes are written as SQLite does, `x'00'`."""

        def write(connection: sa.Connection) -> None:
            spoken = statement
            if connection.dialect.name == "postgresql":
                spoken = _BYTES.sub(r"'\\\\x\1'", statement)
            connection.execute(sa.text(spoken), parameters)

        await self.database.transact(write)

    async def exposures(self, uuid: str) -> list[dict[str, Any]]:
        """Give the exposure rows of a run."""
        return await self.select("SELECT * FROM exposure WHERE run_uid = :uid", uid=(await self.row(uuid)).uid)

    # --- what must hold after any test

    async def check(self) -> None:
        """Check the invariants of every run."""
        for row in await self.store.runs(RunFilter()):
            if row.uuid in self.damaged:
                continue
            await self._check_rest(row)
            await self._check_journal(row)
        await self._check_executions()

    async def _check_rest(self, row: RunRow) -> None:
        if row.status in WAITING_STATUSES:
            assert row.question is not None, row
        elif row.status is RunStatus.RUNNING:
            assert row.uuid in self.unowned, f"still running: {row}"
        elif row.status is RunStatus.QUEUED:
            assert row.due_at is not None, f"nobody will ever act on it: {row}"
        else:
            assert row.reason is not None, row
            assert row.due_at is None and (row.token is None or row.uuid in self.unowned), row

    async def _check_journal(self, row: RunRow) -> None:
        rows = await self.store.entries(row.uid)
        assert [entry.seq for entry in rows] == list(range(1, row.seq + 1))
        assert damaged_at(row, rows) is None
        report = await self.runtime.replay(LOCAL, row.uuid)
        assert report.equal, report
        inside = await look_inside(self.parts, row)
        assert inside.blocked is None
        _fits(row, inside.state)

    async def _check_executions(self) -> None:
        counted = Counter(line["key"] for line in self.executed())
        assert all(n == 1 for key, n in counted.items() if key not in self.repeated), counted


def _fits(row: RunRow, state: SuspendedRunState | None) -> None:
    if state is None:
        assert row.status in (RunStatus.QUEUED, RunStatus.RUNNING) and row.seq == 0
        return
    if state.phase is Phase.DONE:
        assert state.reason is not None
        assert row.status is STATUS_OF[state.reason] and row.reason is state.reason
    elif state.phase is Phase.WAITING:
        assert row.status in WAITING_STATUSES
        assert state.question is not None and state.question.id == row.question
        assert (row.blocked is None) == (state.blocked is None)
    else:
        assert row.status not in WAITING_STATUSES and row.status not in FINAL_STATUSES
    assert (row.rounds, row.input_tokens) == (state.counters.rounds, state.counters.input_tokens)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    # Not `splitlines`: that also parts at characters which JSON leaves as they are.
    return [json.loads(line) for line in path.read_text().split("\n") if line]


@asynccontextmanager
async def open_world(
    folder: Path,
    *,
    claims: bool = True,
    sweeps: bool = False,
    create: bool = True,
    document: Mapping[str, Any] | None = None,
    models: Models | None = None,
    clock: Clock | None = None,
    store: type[SqlRunStore] = SqlRunStore,
    checks: bool = True,
    migrated: bool = False,
    url: str | None = None,
    **figures: Any,
) -> AsyncIterator[World]:
    """Open an installation, with the standard catalogue unless `create` is False; check and close it at the end.

    `migrated` = the schema is made as other processes expect it, which takes longer. `url` = a database that has its
    schema already.
    """
    before = os.environ.get(LEDGER)
    os.environ[LEDGER] = str(folder / "ledger.jsonl")
    url = url or chosen_url(folder)
    made = url is not None
    url = url or f"sqlite:///{folder / 'regate.db'}"
    if migrated and not made:
        await asyncio.to_thread(migrate, url)
    database = Database.open(url)
    world: World | None = None
    sweeping: asyncio.Task[None] | None = None
    try:
        if create and not migrated and not made:
            await database.create_all()
        world = await _assemble(folder, database, models, clock or SystemClock(), store, Figures(**figures))
        if create:
            world.script(reply("done"))
            await world.apply(CATALOGUE if document is None else document)
        await world.host.start(claims=claims)
        if sweeps:
            sweeping = asyncio.create_task(sweep_forever(world.parts, world.host.wake_oldest))
        yield world
        if checks:
            await world.check()
    finally:
        if sweeping is not None:
            sweeping.cancel()
        if world is not None:
            await world.host.drain(5)
            await world.store.stop()
        await database.close()
        if before is None:
            os.environ.pop(LEDGER, None)
        else:
            os.environ[LEDGER] = before


async def _assemble(
    folder: Path,
    database: Database,
    models: Models | None,
    clock: Clock,
    kind: type[SqlRunStore],
    figures: Figures,
) -> World:
    ring = folder / "keys.json"
    sealer = RingSealer(await ensure_ring(database, ring), ring)
    catalogue = SqlCatalogue(database, sealer)
    store = kind(database, lease_s=figures.lease_s)
    logs: list[tuple[str, dict[str, Any]]] = []
    signals = LocalSignals()

    async def nowhere() -> dict[str, Any]:
        return {}

    toolbox = PythonToolbox(
        TOOLS, files_root=None, egress=nowhere, on_fault=lambda tool, e: logs.append(("tool.failed", {tool: e}))
    )
    feed = PolicyFeed(catalogue, toolbox, sealer)
    parts = Parts(
        store=store,
        catalogue=catalogue,
        sealer=sealer,
        models=models or ModelRegistry({"scripted": ScriptedModels()}),
        toolbox=toolbox,
        signals=signals,
        clock=clock,
        figures=figures,
        holder=f"test:{clock.nonce()[:6]}",
        log=lambda name, fields: logs.append((name, fields)),
    )
    host = Host(parts, feed)
    signals.host = host
    return World(
        folder=folder,
        database=database,
        store=store,
        catalogue=catalogue,
        parts=parts,
        host=host,
        runtime=Runtime(parts, feed, host),
        signals=signals,
        logs=logs,
    )
