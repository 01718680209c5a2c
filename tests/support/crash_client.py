"""A program that asks something of the runtime and ends; it may strike itself at a named point on the way.

    crash_client enqueue CONFIGURATION SNIPPET KEY
    crash_client approve|resume|cancel UUID

Prints `done` and the run's uuid when it was told that it is done.
"""

from __future__ import annotations

import asyncio
import os
import sys

from codec.actor import LOCAL
from codec.request import AgentRunRequest, RunAugmentation
from tests.support.crash_points import arm
from worker import open_runtime
from worker.runtime.answers import Verdicts
from worker.runtime.service import Runtime
from worker.settings import Settings

__all__ = ["main"]


def main() -> None:
    """Do what the arguments say."""
    arm(os.environ)
    sys.stdout.write(f"done {asyncio.run(_ask(sys.argv[1], sys.argv[2:]))}\n")


async def _ask(verb: str, words: list[str]) -> str:
    async with open_runtime(Settings.load(os.environ)) as runtime:
        if verb == "enqueue":
            return await _enqueue(runtime, *words)
        [uuid] = words
        if verb == "approve":
            waiting = (await runtime.show(LOCAL, uuid)).waiting
            assert waiting is not None
            await runtime.decide(LOCAL, uuid, waiting.question, Verdicts(default=True, calls={}), via="test")
        elif verb == "resume":
            await runtime.resume(LOCAL, uuid, via="test")
        else:
            await runtime.cancel(LOCAL, uuid, via="test")
        return uuid


async def _enqueue(runtime: Runtime, configuration: str, snippet: str, key: str) -> str:
    request = AgentRunRequest(
        configuration=configuration,
        messages=({"role": "user", "content": "Open a ticket, please."},),  # type: ignore[arg-type]  # dicts are taken too
        augmentation=RunAugmentation(forced_snippet_uids=(snippet,)),
        idempotency_key=key,
    )
    return (await runtime.enqueue(request)).uuid


if __name__ == "__main__":
    main()
