"""The composition root: the only importer of adapters. Opens an installation from its settings."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from codec.vocabulary import TrustZone
from worker.adapters.catalogue_file import parse_assignment, read_catalogue, resolve_files, write_catalogue
from worker.adapters.embedded_valkey import EmbeddedValkey, EmbeddedValkeyError
from worker.adapters.models.openai import OpenAIModels, sdk_problem
from worker.adapters.models.registry import ModelRegistry
from worker.adapters.models.scripted import ScriptedModels, ScriptError, check_script
from worker.adapters.redis_signals import BrokerHealth, RedisSignals
from worker.adapters.sealing import KeyRing, KeyRingError, RingSealer
from worker.adapters.sql.catalogue import SqlCatalogue
from worker.adapters.sql.engine import Database
from worker.adapters.sql.keys import ensure_ring, verify_ring
from worker.adapters.sql.migrate import MigrationError, migrate
from worker.adapters.sql.migrate import schema_state as state_of
from worker.adapters.sql.processes import Processes
from worker.adapters.sql.purge import SqlPurging
from worker.adapters.sql.rotation import SqlKeys
from worker.adapters.sql.store import SqlRunStore
from worker.adapters.system import SystemClock
from worker.adapters.tools.loading import ToolModuleError
from worker.adapters.tools.toolbox import PythonToolbox
from worker.ports.fleet import Fleet
from worker.ports.keeping import KeyKeeping, Purging
from worker.ports.runs import StoreError
from worker.ports.tool_decorator import ToolDeclarationError
from worker.runtime.feed import PolicyFeed
from worker.runtime.host import Host
from worker.runtime.parts import Figures, Parts
from worker.runtime.service import Runtime
from worker.settings import EMBEDDED, Settings
from worker.telemetry import quiet

__all__ = [
    "BrokerHealth",
    "Installation",
    "LazySignals",
    "ScriptError",
    "StartError",
    "check_ring",
    "check_script",
    "migrate_database",
    "open_installation",
    "open_runtime",
    "parse_assignment",
    "read_catalogue",
    "resolve_files",
    "schema_state",
    "sdk_problem",
    "write_catalogue",
]

_ALIVE_S: Final = 30.0
"""Seconds without a beat after which a process counts as gone; it beats every third of that."""
_FORGOTTEN_S: Final = 86_400.0
"""Seconds of silence after which a killed process is forgotten: long enough to look for it the next morning."""


class StartError(Exception):
    """The installation cannot be opened; one clear sentence says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An opened installation: the runtime, and what commands need besides it."""

    settings: Settings
    runtime: Runtime
    fleet: Fleet
    signals: LazySignals
    identity: str
    keys: KeyKeeping
    purging: Purging

    async def workers(self) -> int:
        """Give the number of living processes that drive runs."""
        return await _drivers(self.fleet)


class LazySignals:
    """Wake-ups that open the broker when the first one is sent; an embedded broker is started or joined then."""

    def __init__(self, settings: Settings, listeners: Callable[[], Any] | None) -> None:
        self._settings = settings
        self._listeners = listeners
        self._valkey: EmbeddedValkey | None = None
        self._redis: RedisSignals | None = None
        self._heard_until = 0.0
        self._opening = asyncio.Lock()  # two who wake at once must not start or join the embedded broker twice

    async def wake(self, uuids: Sequence[str]) -> bool:
        """See the port. Without anybody to listen nothing is sent: the sweeper of the next worker finds the runs."""
        if not await self._is_heard():
            return False
        try:
            await self.url()
        except StartError:
            return False
        if self._redis is None:
            return False
        if await self._redis.wake(uuids):
            return True
        if self._valkey is None:
            return False
        # A keeper that was killed took its server along; whoever notices starts both again.
        try:
            await asyncio.to_thread(self._valkey.ensure)
        except EmbeddedValkeyError:
            return False
        return await self._redis.wake(uuids)

    async def _is_heard(self) -> bool:
        """Whether a process lives that would hear a wake-up; one that lived a moment ago is taken to live still."""
        if self._listeners is None or time.monotonic() < self._heard_until:
            return True
        try:
            heard = bool(await self._listeners())
        except StoreError:
            return False
        if heard:
            self._heard_until = time.monotonic() + _ALIVE_S / 3
        return heard

    async def url(self) -> str:
        """Give the broker's address, starting or joining the embedded one. Errors: `StartError`."""
        async with self._opening:
            return await self._url()

    async def _url(self) -> str:
        url = self._settings.broker_url
        if url == EMBEDDED:
            if self._valkey is None:
                valkey = EmbeddedValkey(self._settings.data_dir)
                try:
                    await asyncio.to_thread(valkey.acquire)
                except EmbeddedValkeyError as error:
                    raise StartError(f"the embedded broker cannot be started: {error}") from None
                self._valkey = valkey
            url = self._valkey.url
        if self._redis is None:
            self._redis = RedisSignals(url)
        return url

    async def health(self) -> BrokerHealth:
        """Ask the broker how it is. Errors: `StartError`."""
        await self.url()
        if self._redis is None:
            raise AssertionError("the address was just given")
        return await self._redis.ping()

    async def close(self) -> None:
        """Leave the broker; an embedded one ends with its last user."""
        if self._redis is not None:
            await self._redis.close()
        if self._valkey is not None:
            await asyncio.to_thread(self._valkey.release)


@asynccontextmanager
async def open_installation(
    settings: Settings, *, kind: str, log: Callable[[str, dict[str, Any]], None] = quiet
) -> AsyncIterator[Installation]:
    """Open everything that a process of this kind needs and close it again, draining the runs that it holds.

    Shape: `kind` is worker, up, sweeper, cli or runtime; only the first three are listed as living processes.
    Errors: `StartError` with one clear sentence; nothing is left open then.
    """
    async with AsyncExitStack() as stack:
        try:
            opened = await _open(stack, settings, kind, log)
        except (KeyRingError, MigrationError, ToolModuleError, ToolDeclarationError) as error:
            raise StartError(str(error)) from None
        stack.push_async_callback(opened.runtime.woken)
        await opened.runtime.host.start(claims=kind in ("worker", "up"))
        stack.push_async_callback(opened.runtime.host.drain)
        if kind in ("worker", "up", "sweeper"):
            await _register(stack, opened, kind)
        yield opened


async def _open(
    stack: AsyncExitStack, settings: Settings, kind: str, log: Callable[[str, dict[str, Any]], None]
) -> Installation:
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    await _prepare_schema(settings)
    database = Database.open(settings.database_url)
    stack.push_async_callback(database.close)
    fleet = Processes(database)
    identity = f"{kind}:{socket.gethostname()}:{os.getpid()}:{SystemClock().nonce()[:6]}"
    signals = LazySignals(settings, None if kind in ("worker", "up", "sweeper") else partial(_drivers, fleet))
    stack.push_async_callback(signals.close)
    return Installation(
        settings=settings,
        runtime=await _runtime(stack, settings, database, signals, identity, log),
        fleet=fleet,
        signals=signals,
        identity=identity,
        keys=SqlKeys(database, settings.keys_file),
        purging=SqlPurging(database, settings.database_url),
    )


async def _runtime(
    stack: AsyncExitStack,
    settings: Settings,
    database: Database,
    signals: LazySignals,
    identity: str,
    log: Callable[[str, dict[str, Any]], None],
) -> Runtime:
    sealer = RingSealer(await ensure_ring(database, settings.keys_file), settings.keys_file)
    catalogue = SqlCatalogue(database, sealer)
    store = SqlRunStore(database, lease_s=settings.lease_seconds)
    stack.push_async_callback(store.stop)
    openai = OpenAIModels(settings.provider_keys)
    stack.push_async_callback(openai.close)
    feed: PolicyFeed

    async def egress() -> Mapping[str, TrustZone]:
        return {e.host: e.zone for e in (await feed.current()).egress}

    toolbox = _toolbox(settings, egress, log)
    feed = PolicyFeed(catalogue, toolbox, sealer)
    parts = Parts(
        store=store,
        catalogue=catalogue,
        sealer=sealer,
        models=ModelRegistry({"scripted": ScriptedModels(), "openai": openai}),
        toolbox=toolbox,
        signals=signals,
        clock=SystemClock(),
        figures=_figures(settings),
        holder=identity,
        log=log,
    )
    return Runtime(parts, feed, Host(parts, feed))


async def _drivers(fleet: Fleet) -> int:
    return sum(1 for p in await fleet.list(_ALIVE_S) if p.alive and p.kind in ("worker", "up"))


def _figures(settings: Settings) -> Figures:
    return Figures(
        lease_s=settings.lease_seconds,
        sweep_s=settings.sweep_seconds,
        retry_s=settings.retry_seconds,
        max_runs=settings.max_runs,
    )


def _toolbox(settings: Settings, egress: Any, log: Callable[[str, dict[str, Any]], None]) -> PythonToolbox:
    if settings.tools and str(Path.cwd()) not in sys.path:
        # An installed command does not look into the current folder; `python -m` does, and so do people's modules.
        sys.path.insert(0, str(Path.cwd()))
    return PythonToolbox(
        settings.tools,
        files_root=settings.files_root,
        egress=egress,
        on_fault=lambda tool, error: log("tool.failed", {"tool": tool, "error": error}),
    )


async def _prepare_schema(settings: Settings) -> None:
    state = await asyncio.to_thread(schema_state, settings)
    if state in ("current", "newer"):
        return
    if settings.database_url.startswith("sqlite"):
        await asyncio.to_thread(migrate, settings.database_url)
        return
    raise StartError(f"the database's schema is {state}; run: regate migrate")


def schema_state(settings: Settings) -> str:
    """Give `current`, `missing`, `older`, or `newer`: of a later build that this one may run beside. Blocks.

    Errors: `StoreError`, `MigrationError` for a schema that this build is too old for.
    """
    return state_of(settings.database_url)


def migrate_database(settings: Settings) -> list[str]:
    """Bring the database to this build's schema; give the applied revisions. Blocks. Errors: as `migrate`."""
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        return migrate(settings.database_url)
    except MigrationError as error:
        raise StartError(str(error)) from None


async def check_ring(settings: Settings) -> int:
    """Count the keys of the ring and see that they are the database's; changes nothing, 0 = there is no ring yet.

    Errors: `StartError` when ring and database do not belong together, `StoreError`. The schema must be current.
    """
    database = Database.open(settings.database_url)
    try:
        ring = KeyRing.load(settings.keys_file) if settings.keys_file.exists() else None
        await database.read(verify_ring, ring)
    except KeyRingError as error:
        raise StartError(str(error)) from None
    finally:
        await database.close()
    return 0 if ring is None else len(ring.keys)


async def _register(stack: AsyncExitStack, opened: Installation, kind: str) -> None:
    await opened.fleet.remove_silent(_FORGOTTEN_S)
    await opened.fleet.register(opened.identity, kind=kind, host=socket.gethostname(), pid=os.getpid())
    stack.push_async_callback(opened.fleet.remove, opened.identity)
    beating = asyncio.create_task(_beat(opened, kind), name="beat")
    stack.callback(beating.cancel)


async def _beat(opened: Installation, kind: str) -> None:
    while True:
        await asyncio.sleep(_ALIVE_S / 3)
        try:
            if not await opened.fleet.beat(opened.identity):
                await opened.fleet.register(opened.identity, kind=kind, host=socket.gethostname(), pid=os.getpid())
        except Exception as error:  # noqa: BLE001 - information only; the next beat tries again
            opened.runtime.parts.log("beat.failed", {"error": type(error).__name__})


@asynccontextmanager
async def open_runtime(settings: Settings | None = None) -> AsyncIterator[Runtime]:
    """Open the runtime for a program of yours; settings come from the environment and `.env` unless given.

    Errors: `SettingsError`, `StartError`.
    """
    loaded = Settings.load(os.environ, Path(".env")) if settings is None else settings
    async with open_installation(loaded, kind="runtime") as opened:
        yield opened.runtime
