"""What `doctor` looks at. Every check is total: whatever it meets becomes a finding in words. Nothing is changed."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from codec.catalogue import CatalogueSnapshot
from codec.suspended import STATE_VERSION
from codec.vocabulary import FINAL_STATUSES, RunStatus
from worker.bootstrap import (
    Installation,
    LazySignals,
    ScriptError,
    StartError,
    check_ring,
    check_script,
    open_installation,
    schema_state,
)
from worker.cli.documents import blocked_of
from worker.cli.faults import fault_of
from worker.cli.texts import plural
from worker.cli.wording import blocked_sentence
from worker.ports.records import RunFilter
from worker.settings import EMBEDDED, Settings

__all__ = ["Finding", "State", "diagnose"]


_MOST_RUNS: Final = 20
"""Blocked runs that are told one by one; more would hide the other findings."""


class State(StrEnum):
    """How bad a finding is: a fault stops something, a warning will or may."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. `message` holds names, uuids and numbers, never content."""

    name: str
    state: State
    message: str


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
        return _warning(name, "there is none yet; the first command that needs it makes it")
    try:
        state = await asyncio.to_thread(schema_state, settings)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the doctor was asked for
        return _fault(name, fault_of(error).message if not str(error).startswith("the database is") else str(error))
    if state == "current":
        return _ok(name, "its schema is this build's")
    if state == "newer":
        return _ok(name, "its schema is a later build's, which this one may run beside")
    return _warning(name, f"its schema is {state}; run: regate migrate")


async def _ring(settings: Settings) -> Finding:
    name = "key ring"
    try:
        count = await check_ring(settings)
    except StartError as error:
        return _fault(name, str(error))
    except Exception as error:  # noqa: BLE001 - as above
        return _fault(name, fault_of(error).message)
    if count == 0:
        return _warning(name, f"there is none yet; {settings.keys_file} is made by the first command that seals")
    if settings.keys_file.stat().st_mode & 0o077:
        return _fault(name, f"others may read {settings.keys_file}; run: chmod 600 {settings.keys_file}")
    return _ok(name, f"{plural(count, 'key')}, and the database knows them")


async def _broker(settings: Settings) -> Finding:
    with tempfile.TemporaryDirectory(prefix="regate-") as folder:
        if settings.broker_url == EMBEDDED and not settings.data_dir.exists():
            settings = replace(settings, data_dir=Path(folder))
        signals = LazySignals(settings, None)
        try:
            health = await signals.health()
        except (StartError, ValueError) as error:
            return _fault("broker", str(error))
        finally:
            with suppress(Exception):
                await signals.close()
    if not health.reachable:
        return _fault("broker", f"does not answer ({health.error}); runs are only found by a sweeper then")
    if not health.ok:
        told = f"its maxmemory-policy is {health.policy or 'unknown'}, not noeviction"
        return _warning("broker", f"{told}: wake-ups may be dropped, and runs then wait for a sweep")
    return _ok("broker", f"answers, noeviction, {plural(health.waiting or 0, 'wake-up')} in the queue")


async def _inside(opened: Installation) -> AsyncIterator[Finding]:
    checks: tuple[Callable[[Installation], AsyncIterator[Finding]], ...] = (_catalogue, _workers, _runs, _dead)
    for check in checks:
        try:
            async for finding in check(opened):
                yield finding
        except Exception as error:  # noqa: BLE001 - as above
            yield _fault(check.__name__.strip("_"), fault_of(error).message)


async def _catalogue(opened: Installation) -> AsyncIterator[Finding]:
    snapshot = await opened.runtime.feed.current()
    if not snapshot.readable:
        yield _fault("catalogue", "something in it cannot be read, so nothing is permitted; apply a good file")
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
    yield _ok("catalogue", f"readable, version {snapshot.version}: {told}; the policy is {snapshot.enforcement.value}")
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
                found.append(_fault(name, str(error)))
            else:
                found.append(_ok(name, "its script can be loaded"))
        elif provider.api_key_env and provider.api_key_env not in settings.provider_keys:
            found.append(_warning(name, f"{provider.api_key_env} is not set here; it must be where workers run"))
    for configuration in snapshot.configurations.values():
        if configuration.provider is None or configuration.provider not in snapshot.providers:
            found.append(_warning(f"configuration {configuration.identifier}", "its provider no longer exists"))
    return found


async def _workers(opened: Installation) -> AsyncIterator[Finding]:
    count = await opened.workers()
    if count:
        yield _ok("workers", f"{plural(count, 'process', 'processes')} alive")
    else:
        yield _warning("workers", "none is alive: queued runs wait; start one with: regate up --no-web")


async def _runs(opened: Installation) -> AsyncIterator[Finding]:
    parts = opened.runtime.parts
    unfinished = tuple(status for status in RunStatus if status not in FINAL_STATUSES)
    stuck = 0
    for row in await parts.store.runs(RunFilter(statuses=unfinished)):
        blocked = blocked_of(row, parts.sealer.key_ids, STATE_VERSION)
        if blocked is None:
            continue
        stuck += 1
        if stuck <= _MOST_RUNS:
            yield _warning(f"run {row.uuid}", f"blocked: {blocked_sentence(blocked)}")
    if stuck > _MOST_RUNS:
        yield _warning("more runs", f"{stuck - _MOST_RUNS} more are blocked: regate runs tells which")
    if not stuck:
        yield _ok("runs", "none is blocked")


async def _dead(opened: Installation) -> AsyncIterator[Finding]:
    dead = await opened.runtime.parts.store.runs(RunFilter(dead=True))
    if dead:
        yield _warning("dead runs", f"{plural(len(dead), 'failed run')} can be requeued: regate runs --dead")
    else:
        yield _ok("dead runs", "none")


def _ok(name: str, message: str) -> Finding:
    return Finding(name=name, state=State.OK, message=message)


def _warning(name: str, message: str) -> Finding:
    return Finding(name=name, state=State.WARNING, message=message)


def _fault(name: str, message: str) -> Finding:
    return Finding(name=name, state=State.FAULT, message=message)
