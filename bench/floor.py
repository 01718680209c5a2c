"""The floor: work W by hand with asyncio and SQLAlchemy Core, for nothing but this work.

Two tables, and as many durable writes as ours makes: stored, claimed, four steps, answered, claimed, three steps. All
runs share one writer, which commits whatever has gathered while its last transaction ran. A suspended run is dropped
from memory and loaded again. There is no gate, no sealing, no chain, no lease, no schema check and no recovery.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from bench import work
from bench.measuring import Case, drive, warm_up
from bench.scripted import REPLIES, TOOLS
from bench.storage import per_run, stored

__all__ = ["measure"]

T = TypeVar("T")

_METADATA: Final = sa.MetaData()
_RUN: Final = sa.Table(
    "run",
    _METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
)
_STEP: Final = sa.Table(
    "step",
    _METADATA,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)
_PAYLOADS: Final = {"run": "state", "step": "body"}

_this: Final = _RUN.c.id == sa.bindparam("run")
_STORE: Final = sa.insert(_RUN)
_CLAIM: Final = (
    sa.update(_RUN)
    .where(_RUN.c.id.in_(sa.bindparam("runs", expanding=True)), _RUN.c.status.in_(("queued", "answered")))
    .values(status="running")
    .returning(_RUN.c.id, _RUN.c.state)
)
_APPEND: Final = sa.insert(_STEP)
_REST: Final = sa.update(_RUN).where(_this).values(status=sa.bindparam("to"), state=sa.bindparam("as"))
_ANSWER: Final = sa.update(_RUN).where(_this, _RUN.c.status == "waiting").values(status="answered")

_Write = tuple[sa.Executable, Mapping[str, Any]]


class _Store(Protocol):
    async def write(self, work: Callable[[sa.Connection], T]) -> T: ...
    async def close(self) -> None: ...


class _Sqlite:
    """One thread with one connection."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url, connect_args={"check_same_thread": False})
        sa.event.listen(self._engine, "connect", self._prepare)
        self._thread = ThreadPoolExecutor(1)

    async def write(self, work: Callable[[sa.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._write, work)

    async def close(self) -> None:
        self._thread.shutdown()
        self._engine.dispose()

    def _write(self, work: Callable[[sa.Connection], T]) -> T:
        with self._engine.begin() as connection:
            return work(connection)

    @staticmethod
    def _prepare(connection: Any, _: object) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")


class _Postgres:
    """One connection."""

    def __init__(self, url: str) -> None:
        self._engine = create_async_engine(url)

    async def write(self, work: Callable[[sa.Connection], T]) -> T:
        async with self._engine.begin() as connection:
            return await connection.run_sync(work)

    async def close(self) -> None:
        await self._engine.dispose()


@dataclass(slots=True)
class _Writer:
    """Group commit: what gathers while a transaction runs is the next one."""

    store: _Store
    writes: list[_Write] = field(default_factory=list)
    claims: list[str] = field(default_factory=list)
    waiting: list[asyncio.Future[Mapping[str, str]]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    async def commit(self, *writes: _Write) -> None:
        self.writes.extend(writes)
        await self._next()

    async def claim(self, run: str) -> str:
        """Take a run and give its state."""
        self.claims.append(run)
        return (await self._next())[run]

    def _next(self) -> asyncio.Future[Mapping[str, str]]:
        done: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        self.waiting.append(done)
        if self.task is None:
            self.task = asyncio.create_task(self._run())
        return done

    async def _run(self) -> None:
        while self.waiting:
            batch = partial(_commit, writes=self.writes, claims=self.claims)
            waiting = self.waiting
            self.writes, self.claims, self.waiting = [], [], []
            try:
                claimed = await self.store.write(batch)
            except Exception as error:  # noqa: BLE001 - told to those who wait
                for done in waiting:
                    done.set_exception(error)
            else:
                for done in waiting:
                    done.set_result(claimed)
        self.task = None


def _commit(connection: sa.Connection, writes: Iterable[_Write], claims: Sequence[str]) -> dict[str, str]:
    """Run each statement once for all runs that need it; give the states of those that were claimed."""
    grouped: dict[sa.Executable, list[Mapping[str, Any]]] = defaultdict(list)
    for statement, values in writes:
        grouped[statement].append(values)
    for statement in (_STORE, _ANSWER, _APPEND, _REST):
        if statement in grouped:
            connection.execute(statement, grouped[statement])
    if not claims:
        return {}
    return {row.id: row.state for row in connection.execute(_CLAIM, {"runs": claims})}


@dataclass(slots=True)
class _Run:
    """A run in memory, between its claim and its rest."""

    id: str
    seq: int
    messages: list[dict[str, Any]]

    def step(self, kind: str, body: object) -> _Write:
        self.seq += 1
        return _APPEND, {"run_id": self.id, "seq": self.seq, "kind": kind, "body": json.dumps(body)}

    def say(self, **message: Any) -> _Write:
        self.messages.append(message)
        return self.step(message["role"], message)

    def rest(self, status: str) -> _Write:
        return _REST, {"run": self.id, "to": status, "as": _state(self.seq, self.messages)}


def _state(seq: int, messages: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps({"seq": seq, "messages": messages})


async def _segment(writer: _Writer, identity: str, *, approved: bool) -> None:
    """Claim a run, load it and drive it until it waits or ends."""
    state = json.loads(await writer.claim(identity))
    run = _Run(identity, state["seq"], state["messages"])
    if approved:
        await writer.commit(run.step("resumed", {"approved": True}))
    else:
        run.messages.insert(0, {"role": "system", "content": work.SYSTEM})
        await writer.commit(run.step("started", run.messages))
    while True:
        if run.messages[-1]["role"] != "assistant":
            said = REPLIES[sum(message["role"] == "assistant" for message in run.messages)]
            step = run.say(role="assistant", content=said.text, tool=said.tool, arguments=said.arguments)
            if not said.tool or said.tool == "refund_order":
                await writer.commit(step, run.rest("waiting" if said.tool else "completed"))
                return
            await writer.commit(step)
        call = run.messages[-1]
        await writer.commit(run.say(role="tool", content=await TOOLS[call["tool"]](**call["arguments"])))


async def _work_w(writer: _Writer) -> None:
    identity = str(uuid.uuid4())
    asked = [{"role": "user", "content": work.PROMPT}]
    await writer.commit((_STORE, {"id": identity, "status": "queued", "state": _state(0, asked)}))
    await _segment(writer, identity, approved=False)
    await writer.commit((_ANSWER, {"run": identity}))
    await _segment(writer, identity, approved=True)


async def measure(case: Case) -> dict[str, Any]:
    """Measure one concurrency on one engine."""
    store: _Store = _Sqlite(case.url) if case.engine == "sqlite" else _Postgres(case.url_for("asyncpg"))
    await store.write(_METADATA.create_all)
    writer = _Writer(store)

    async def one() -> None:
        await _work_w(writer)

    await warm_up(case, one)
    before = await stored(case, _PAYLOADS)
    found = await drive(case, case.runs, one)
    done = await store.write(lambda c: c.scalar(sa.select(sa.func.count()).where(_RUN.c.status == "completed")))
    found |= per_run(before, await stored(case, _PAYLOADS), found["runs"])
    await store.close()
    assert done is not None and done >= found["runs"], done
    return found
