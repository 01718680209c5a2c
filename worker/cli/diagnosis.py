"""What `doctor` looks at. Every check is total: whatever it meets becomes a finding in words. Nothing is changed."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from codec.catalogue import CatalogueSnapshot
from worker.bootstrap import (
    Installation,
    LazySignals,
    ScriptError,
    StartError,
    check_ring,
    check_script,
    open_installation,
    schema_state,
    sdk_problem,
)
from worker.cli.faults import fault_of
from worker.cli.findings import Finding, State, fault, ok, warning
from worker.cli.texts import plural
from worker.cli.unfinished import dead_runs, stuck_runs, suspected_runs, waiting_runs
from worker.settings import EMBEDDED, Settings

__all__ = ["diagnose"]


async def diagnose(settings: Settings) -> AsyncIterator[Finding]:
    """Check everything, what others stand on first."""
    schema = await _schema(settings)
    yield schema
    broker = await _broker(settings)
    if schema.state is not State.OK:
        yield broker
        return
    ring = await _ring(settings)
    yield ring
    yield broker
    if ring.state is not State.OK:
        return
    try:
        async with open_installation(settings, kind="cli") as opened:
            async for finding in _inside(opened):
                yield finding
    except StartError as error:
        yield Finding(name="start", state=State.FAULT, message=str(error))


async def _schema(settings: Settings) -> Finding:
    name = "database"
    file = settings.data_dir / "regate.db"
    if settings.database_url == f"sqlite:///{file}" and not file.exists():
        # To look into a SQLite file that is not there would make one.
        return warning(name, "there is none yet; the first command that needs it makes it")
    try:
        state = await asyncio.to_thread(schema_state, settings)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the doctor was asked for
        return fault(name, fault_of(error).message if not str(error).startswith("the database is") else str(error))
    if state == "current":
        return ok(name, "its schema is this build's")
    if state == "newer":
        return ok(name, "its schema is a later build's, which this one may run beside")
    return warning(name, f"its schema is {state}; run: regate migrate")


async def _ring(settings: Settings) -> Finding:
    name = "key ring"
    try:
        count = await check_ring(settings)
    except StartError as error:
        return fault(name, str(error))
    except Exception as error:  # noqa: BLE001 - as above
        return fault(name, fault_of(error).message)
    if count == 0:
        return warning(name, f"there is none yet; {settings.keys_file} is made by the first command that seals")
    if settings.keys_file.stat().st_mode & 0o077:
        return fault(name, f"others may read {settings.keys_file}; run: chmod 600 {settings.keys_file}")
    return ok(name, f"{plural(count, 'key')}, and the database knows them")


async def _broker(settings: Settings) -> Finding:
    with tempfile.TemporaryDirectory(prefix="regate-") as folder:
        if settings.broker_url == EMBEDDED and not settings.data_dir.exists():
            settings = replace(settings, data_dir=Path(folder))
        signals = LazySignals(settings, None)
        try:
            health = await signals.health()
        except (StartError, ValueError) as error:
            return fault("broker", str(error))
        finally:
            with suppress(Exception):
                await signals.close()
    if not health.reachable:
        return fault("broker", f"does not answer ({health.error}); runs are only found by a sweeper then")
    if health.refusal is not None:
        return fault("broker", f"takes no wake-ups ({health.refusal}); runs are only found by a sweeper then")
    if health.evicts:
        told = f"its maxmemory-policy is {health.policy or 'unknown'}, not noeviction"
        return warning("broker", f"{told}: wake-ups may be dropped, and runs then wait for a sweep")
    return ok("broker", f"answers, noeviction, {plural(health.waiting or 0, 'wake-up')} in the queue")


async def _inside(opened: Installation) -> AsyncIterator[Finding]:
    for check in _CHECKS:
        try:
            async for finding in check(opened):
                yield finding
        except Exception as error:  # noqa: BLE001 - as above
            yield fault(check.__name__.strip("_").replace("_", " "), fault_of(error).message)


async def _catalogue(opened: Installation) -> AsyncIterator[Finding]:
    snapshot = await opened.runtime.feed.current()
    if not snapshot.readable:
        yield fault("catalogue", "something in it cannot be read, so nothing is permitted; apply a good file")
        return
    told = ", ".join(
        plural(len(records), name)
        for name, records in (
            ("provider", snapshot.providers),
            ("configuration", snapshot.configurations),
            ("snippet", snapshot.snippets),
            ("skill", snapshot.skills),
        )
    )
    yield ok("catalogue", f"readable, version {snapshot.version}: {told}; the policy is {snapshot.enforcement.value}")
    for finding in _providers(opened.settings, snapshot):
        yield finding


def _providers(settings: Settings, snapshot: CatalogueSnapshot) -> list[Finding]:
    found = []
    for provider in snapshot.providers.values():
        name = f"provider {provider.identifier}"
        if provider.kind == "scripted":
            try:
                check_script(Path(provider.script or ""))
            except ScriptError as error:
                found.append(fault(name, str(error)))
            else:
                found.append(ok(name, "its script can be loaded"))
        elif provider.kind == "openai" and (problem := sdk_problem()) is not None:
            found.append(fault(name, problem))
        elif provider.api_key_env and provider.api_key_env not in settings.provider_keys:
            found.append(warning(name, f"{provider.api_key_env} is not set here; it must be where workers run"))
    for configuration in snapshot.configurations.values():
        if configuration.provider is None or configuration.provider not in snapshot.providers:
            found.append(warning(f"configuration {configuration.identifier}", "its provider no longer exists"))
    return found


async def _workers(opened: Installation) -> AsyncIterator[Finding]:
    count = await opened.workers()
    if count:
        yield ok("workers", f"{plural(count, 'process', 'processes')} alive")
    else:
        yield warning("workers", "none is alive: queued runs wait; start one with: regate up --no-web")


_CHECKS: Final[tuple[Callable[[Installation], AsyncIterator[Finding]], ...]] = (
    _catalogue,
    _workers,
    stuck_runs,
    waiting_runs,
    suspected_runs,
    dead_runs,
)
