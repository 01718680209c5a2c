"""Suspects: who is driven beside whom."""

from __future__ import annotations

import asyncio
from typing import Final

from worker.runtime.suspects import Suspects, Turn

LONG_S: Final = 3600.0


def turns(suspects: Suspects, in_vain: int, count: int) -> list[Turn]:
    """Give those of so many turns that are had."""
    found = [Turn(suspects, LONG_S) for _ in range(count)]
    return [turn for turn in found if turn.take(in_vain)]


async def test_the_more_segments_were_in_vain_the_fewer_are_driven_at_once() -> None:
    suspects = Suspects(max_runs=100)

    assert [50, 50, 12, 1, 0] == [len(turns(suspects, in_vain, 50)) for in_vain in range(5)]  # 4 shares with 3
    assert [1, 1] == [len(turns(Suspects(max_runs=1), in_vain, 5)) for in_vain in (2, 3)]


async def test_whoever_came_further_or_ended_makes_room() -> None:
    suspects = Suspects(max_runs=100)
    first, second = Turn(suspects, LONG_S), Turn(suspects, LONG_S)

    assert first.take(3)
    assert not second.take(4)
    first.end()
    first.end()
    with second:
        assert second.take(4)
        assert not first.take(3)
    assert [1] == [len(turns(suspects, 3, 9))]


async def test_who_lived_long_enough_makes_room() -> None:
    """A suspect that waits for its model must not keep the others waiting as long."""
    suspects = Suspects(max_runs=8)
    lasting = Turn(suspects, 0.01)

    assert lasting.take(3)
    await asyncio.sleep(0.05)

    assert Turn(suspects, LONG_S).take(3)
