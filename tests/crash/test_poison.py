"""A run that ends every process that drives it, beside runs that could not get anywhere in so short a life."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import tomli_w

from codec.vocabulary import TerminationReason
from tests.support.crash_load import Load, people
from tests.support.engines import ENGINES, FULL, engine_url
from tests.support.processes import Fleet, fleet
from tests.support.world import CATALOGUE, call, eventually, merged, reply

pytestmark = [pytest.mark.crash, pytest.mark.skipif(not FULL, reason="only with REGATE_TEST_CRASH=full")]


async def poisoned(found: Fleet) -> str:
    """Begin a run whose tool ends the process."""
    (found.world.folder / "poison.toml").write_text(tomli_w.dumps({"reply": [reply("", call("die", "p1"))]}))
    document = merged(
        CATALOGUE,
        provider__poison={"kind": "scripted", "script": "poison.toml", "trust_zone": "local"},
        configuration__poisoned={"provider": "poison", "model": "m"},
    )
    await found.world.apply(document)
    return (await found.world.runtime.enqueue(found.world.ask(configuration="poisoned"))).uuid


async def supervise(found: Fleet) -> None:
    """Start a worker whenever the last one has died."""
    number = 0
    while True:
        worker = await found.add(f"worker{number}")
        await worker.ended()
        number += 1


@pytest.mark.parametrize("database", ENGINES)
async def test_a_run_that_kills_its_workers_takes_no_other_run_with_it(tmp_path: Path, database: str) -> None:
    async with engine_url(database, tmp_path) as url, fleet(tmp_path, 0, url=url, REGATE_MAX_RUNS="16") as found:
        poison = await poisoned(found)
        load = Load(world=found.world, wake=found.signals.wake)
        load.script(delay_ms=1000)
        supervising = asyncio.create_task(supervise(found))
        async with people(load):
            await load.enqueue(8)
            await load.ended(180)
        await eventually(lambda: dead(found, poison), "the run is given up", seconds=60)
        supervising.cancel()
        await asyncio.wait([supervising])

        assert 6 == len(found.world.executed(poison))  # the first time, and five recoveries
        found.world.repeated |= {line["key"] for line in found.world.executed(poison)}
        assert await load.check() > 0


async def dead(found: Fleet, uuid: str) -> bool:
    return (await found.world.row(uuid)).reason is TerminationReason.RETRIES_EXHAUSTED
