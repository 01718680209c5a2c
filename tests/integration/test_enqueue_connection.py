"""`enqueue(request, connection=…)`: the run is written in the caller's transaction, on every kind of connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import pytest_asyncio

from codec.actor import LOCAL
from codec.vocabulary import Origin, RunStatus
from tests.support.callers import ON_POSTGRES, PARAMS, Caller, calling
from tests.support.postgres import server
from tests.support.world import World, open_world
from worker.ports.records import Document, RunFilter
from worker.ports.runs import StoreError
from worker.runtime.errors import ConflictError, InvalidError, NotFoundError

# One installation an engine, for all tests of this file: they only add runs and orders, each its own.
pytestmark = pytest.mark.asyncio(loop_scope="module")

_NUMBERS: Final = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """An installation, its database with a table of the caller's own in it, and the caller."""

    world: World
    url: str
    kind: str
    caller: Caller

    async def order(self) -> int:
        """Write a row into the caller's transaction."""
        number = next(_NUMBERS)
        await self.caller.execute(f"INSERT INTO orders VALUES ({number})")
        return number

    async def has(self, number: int) -> bool:
        """Whether an order is committed."""
        return bool(await self.world.select("SELECT id FROM orders WHERE id = :id", id=number))

    async def runs(self) -> int:
        """Count the runs that are committed."""
        return len(await self.world.store.runs(RunFilter()))


Opened = Callable[[str], Coroutine[Any, Any, tuple[World, str]]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installation(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Opened]:
    """Open the world of an engine, once."""
    found: dict[str, tuple[World, str]] = {}
    async with AsyncExitStack() as stack:

        async def give(engine: str) -> tuple[World, str]:
            if engine not in found:
                folder = tmp_path_factory.mktemp(engine)
                made = stack.enter_context(server().clone()) if engine == "postgresql" else None
                world = await stack.enter_async_context(open_world(folder, url=made))
                await world.alter("CREATE TABLE orders (id integer PRIMARY KEY)")
                found[engine] = world, made or f"sqlite:///{folder / 'regate.db'}"
            return found[engine]

        yield give


@pytest_asyncio.fixture(params=PARAMS, loop_scope="module")
async def shop(request: pytest.FixtureRequest, installation: Opened) -> AsyncIterator[Shop]:
    world, url = await installation("postgresql" if request.param in ON_POSTGRES else "sqlite")
    world.signals.sent.clear()
    async with calling(request.param, url) as caller:
        yield Shop(world=world, url=url, kind=request.param, caller=caller)


async def test_the_run_commits_with_the_callers_data(shop: Shop) -> None:
    """Nobody sees it before, and nobody is told of it; afterwards a wake-up brings a worker."""
    world, caller = shop.world, shop.caller
    number = await shop.order()
    handle = await world.runtime.enqueue(world.ask(), connection=caller.connection)
    assert handle.is_new
    assert not await shop.has(number)
    assert await world.store.run(handle.uuid) is None

    await caller.commit()
    assert await shop.has(number)
    assert RunStatus.QUEUED is (await world.row(handle.uuid)).status
    assert [] == world.signals.sent

    handle.wake()
    assert RunStatus.COMPLETED is (await world.rest(handle.uuid)).status
    assert [handle.uuid] == world.signals.sent


async def test_the_run_may_come_first(shop: Shop) -> None:
    """A driver that begins late has not begun yet."""
    handle = await shop.world.runtime.enqueue(shop.world.ask(), connection=shop.caller.connection)
    number = await shop.order()
    assert await shop.world.store.run(handle.uuid) is None

    await shop.caller.commit()
    assert await shop.has(number)
    assert RunStatus.QUEUED is (await shop.world.row(handle.uuid)).status


async def test_a_rollback_leaves_nothing(shop: Shop) -> None:
    """A wake-up before it does no harm, nor one after it."""
    world, caller = shop.world, shop.caller
    before = await shop.runs()
    number = await shop.order()
    handle = await world.runtime.enqueue(world.ask(), connection=caller.connection)
    handle.wake()
    await world.runtime.woken()
    await caller.rollback()
    handle.wake()
    await world.runtime.woken()

    assert [handle.uuid, handle.uuid] == world.signals.sent
    assert (False, before) == (await shop.has(number), await shop.runs())
    with pytest.raises(NotFoundError):
        await world.runtime.show(LOCAL, handle.uuid)
    assert RunStatus.COMPLETED is (await world.queue()).status


async def test_one_key_is_one_run(shop: Shop) -> None:
    """In the same transaction and in a later one; another body is a conflict that leaves the transaction usable."""
    world, caller = shop.world, shop.caller
    key = f"order-{next(_NUMBERS)}"
    request = world.ask(idempotency_key=key)
    first = await world.runtime.enqueue(request, connection=caller.connection)
    again = await world.runtime.enqueue(request, connection=caller.connection)
    await caller.commit()
    later = await world.runtime.enqueue(request, connection=caller.connection)
    assert [True, False, False] == [handle.is_new for handle in (first, again, later)]
    assert {first.uuid} == {again.uuid, later.uuid}

    before = await shop.runs()
    with pytest.raises(ConflictError) as conflict:
        await world.runtime.enqueue(world.ask("else", idempotency_key=key), connection=caller.connection)
    assert ("idempotency", first.uuid) == (conflict.value.code, conflict.value.uuid)
    number = await shop.order()
    await caller.commit()
    assert (True, before) == (await shop.has(number), await shop.runs())


async def test_what_fails_halfway_leaves_no_half_run(shop: Shop) -> None:
    """The run's row is undone with the document that could not be stored; the caller's rows stay."""
    world, caller = shop.world, shop.caller
    before = await shop.runs()
    document = Document(kind="request", version=1, seq=0, payload=b"sealed")
    new = await world.runtime.prepare(world.ask(), Origin.QUEUE)
    earlier = await shop.order()
    with pytest.raises(StoreError, match=r"^integrity$"):
        await world.store.create_in(caller.connection, msgspec.structs.replace(new, documents=(document, document)))
    later = await shop.order()
    await caller.commit()
    assert (True, True) == (await shop.has(earlier), await shop.has(later))
    assert before == await shop.runs()


async def test_a_connection_in_autocommit_is_refused(shop: Shop) -> None:
    """What could not be taken back together is not written."""
    before = await shop.runs()
    async with calling(shop.kind, shop.url, autocommit=True) as caller:
        with pytest.raises(InvalidError) as refused:
            await shop.world.runtime.enqueue(shop.world.ask(), connection=caller.connection)
    assert "connection_no_transaction" == refused.value.code
    assert before == await shop.runs()


async def test_another_installations_database_is_refused(shop: Shop) -> None:
    """It has our tables, but nobody who works on it could open the run."""
    world, caller = shop.world, shop.caller
    before = await shop.runs()
    new = await world.runtime.prepare(world.ask(), Origin.QUEUE)
    number = await shop.order()
    with pytest.raises(StoreError, match=r"^other_database$"):
        await world.store.create_in(caller.connection, msgspec.structs.replace(new, key_id="k-other"))
    await caller.commit()
    assert (True, before) == (await shop.has(number), await shop.runs())


async def test_a_database_without_our_tables_is_refused(shop: Shop, tmp_path: Path) -> None:
    """And the transaction there goes on."""
    if shop.kind in ON_POSTGRES:
        url = server().url
    else:
        url = f"sqlite:///{tmp_path / 'other.db'}"
    async with calling(shop.kind, url) as caller:
        await caller.execute("CREATE TEMPORARY TABLE orders (id integer)")
        with pytest.raises(InvalidError) as refused:
            await shop.world.runtime.enqueue(shop.world.ask(), connection=caller.connection)
        assert "connection_other_database" == refused.value.code
        await caller.execute("INSERT INTO orders VALUES (1)")
        await caller.commit()
        assert [(1,)] == list(await caller.execute("SELECT id FROM orders"))
