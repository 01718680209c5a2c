"""A broker that may drop wake-ups for want of memory is named in the log of every worker that starts on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from worker.adapters.embedded_valkey import EmbeddedValkey
from worker.bootstrap import LazySignals
from worker.queue.serve import warn_of_eviction
from worker.settings import Settings


@pytest.mark.parametrize(
    ("policy", "lines"),
    [
        ("noeviction", []),
        ("allkeys-lru", [("broker.evicts", {"policy": "allkeys-lru", "wanted": "noeviction"})]),
    ],
)
async def test_a_broker_that_evicts_is_named(policy: str, lines: list[Any], tmp_path: Path) -> None:
    logged: list[tuple[str, dict[str, Any]]] = []
    with EmbeddedValkey(tmp_path) as valkey, redis.Redis.from_url(valkey.url) as client:
        client.config_set("maxmemory-policy", policy)
        signals = LazySignals(Settings.load({"REGATE_BROKER_URL": valkey.url}), None)

        await warn_of_eviction(signals, lambda event, fields: logged.append((event, fields)))
        await signals.close()

    assert lines == logged


async def test_a_broker_that_is_away_is_not_called_one_that_evicts(tmp_path: Path) -> None:
    logged: list[str] = []
    signals = LazySignals(Settings.load({"REGATE_BROKER_URL": f"unix://{tmp_path / 'none'}"}), None)

    await warn_of_eviction(signals, lambda event, _: logged.append(event))
    await signals.close()

    assert [] == logged
