"""An installation of ours for the benchmark: the real one, with a scripted model and the tools of work W."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import tomli_w

from bench import work
from bench.measuring import Case
from codec.actor import LOCAL
from codec.commands import Permit
from codec.request import AgentRunRequest
from codec.transcript import ModelReply
from codec.vocabulary import RunStatus
from worker.bootstrap import migrate_database, open_installation, read_catalogue
from worker.ports.models import ModelRequest, Models
from worker.ports.records import Claimed
from worker.runtime.answers import Verdicts
from worker.runtime.feed import PolicyFeed
from worker.runtime.host import Host
from worker.runtime.parts import Parts
from worker.runtime.service import Runtime
from worker.settings import Settings

__all__ = ["SCRIPT", "Bench", "Sent", "apply", "call", "environment", "open_bench", "request"]


def call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Build one call of a scripted reply."""
    return {"id": f"call_{name}", "name": name, "arguments": dict(arguments)}


SCRIPT: Final[list[dict[str, Any]]] = [
    {"text": work.THOUGHTS[0], "tool_calls": [call("lookup_order", work.LOOKUP_ARGUMENTS)]},
    {"text": work.THOUGHTS[1], "tool_calls": [call("refund_order", work.REFUND_ARGUMENTS)]},
    {"text": work.ANSWER},
]
"""What the model says in work W."""


def environment(case: Case, **more: str) -> dict[str, str]:
    """Give the settings of a process of this case."""
    return {
        "REGATE_DATA_DIR": str(case.folder),
        "REGATE_DATABASE_URL": case.url,
        "REGATE_TOOLS": "bench.tools",
        **more,
    }


async def apply(runtime: Runtime, folder: Path, scripts: Mapping[str, Mapping[str, Any]]) -> None:
    """Make the catalogue: for each name a scripted provider and a configuration."""
    document: dict[str, Any] = {"provider": [], "configuration": []}
    for name, script in scripts.items():
        (folder / f"{name}.script.toml").write_text(tomli_w.dumps(script))
        document["provider"].append(
            {"identifier": name, "kind": "scripted", "script": f"{name}.script.toml", "trust_zone": "local"}
        )
        document["configuration"].append(
            {
                "identifier": name,
                "provider": name,
                "model": "stand-in",
                "system_prompt": work.SYSTEM,
                "system_prompt_data_class": "editor_content",  # so that there is something to judge
                "max_iterations": 200,
                "context_length": 10_000_000,  # nothing is dropped from a long run
            }
        )
    path = folder / "catalogue.toml"
    path.write_text(tomli_w.dumps(document))
    await runtime.parts.catalogue.apply(read_catalogue(path), prune=True, actor="bench", via="cli")


def request(configuration: str = "w") -> AgentRunRequest:
    """Build the request of a run."""
    return AgentRunRequest(configuration=configuration, messages=({"role": "user", "content": work.PROMPT},))  # type: ignore[arg-type]  # dicts are taken too


class _Here:
    """Wake-ups that stay in the process: the queue is measured in cases of its own."""

    def __init__(self) -> None:
        self.host: Host | None = None

    async def wake(self, uuids: Sequence[str]) -> bool:
        if self.host is not None:
            self.host.wake(uuids)
        return True


class _WatchedHost(Host):
    """Tells whoever waits that a segment of a run ended, so that nobody polls."""

    def __init__(self, parts: Parts, feed: PolicyFeed) -> None:
        super().__init__(parts, feed)
        self._ended: dict[str, asyncio.Event] = {}

    def take(self, claimed: Claimed) -> asyncio.Task[None]:
        task = super().take(claimed)
        uuid = claimed.row.uuid
        task.add_done_callback(lambda _: self.ended(uuid).set())
        return task

    def ended(self, uuid: str) -> asyncio.Event:
        return self._ended.setdefault(uuid, asyncio.Event())

    def forget(self, uuid: str) -> None:
        del self._ended[uuid]


class Sent:
    """Models that count the sends of each run."""

    def __init__(self, models: Models) -> None:
        self.counts: Counter[str] = Counter()
        self._models = models
        self._changed = asyncio.Event()

    async def send(self, permit: Permit, request: ModelRequest, progress: Callable[[str], None] | None) -> ModelReply:
        """See the port."""
        self.counts[request.run] += 1
        self._changed.set()
        return await self._models.send(permit, request, progress)

    async def by(self, runs: int) -> None:
        """Wait until this many runs have sent."""
        while len(self.counts) < runs:
            self._changed.clear()
            await self._changed.wait()


@dataclass(slots=True, kw_only=True)
class Bench:
    """An open installation whose own process drives what is enqueued, as a worker does."""

    runtime: Runtime
    host: _WatchedHost
    sent: Sent

    async def rest(self, uuid: str) -> None:
        """Wait until the segment that runs now, or begins next, has ended."""
        ended = self.host.ended(uuid)
        await ended.wait()
        ended.clear()

    async def work_w(self) -> None:
        """Do work W once: enqueue, suspend, look, approve, resume, complete."""
        uuid = (await self.runtime.enqueue(request())).uuid
        await self.rest(uuid)
        row = await self.runtime.row(LOCAL, uuid)
        assert row.status is RunStatus.WAITING_FOR_APPROVAL and row.question is not None, row.status
        await self.runtime.decide(LOCAL, uuid, row.question, Verdicts(default=True, calls={}), via="bench")
        await self.rest(uuid)
        row = await self.runtime.row(LOCAL, uuid)
        assert row.status is RunStatus.COMPLETED and row.rounds == 3, (row.status, row.reason, row.rounds)
        self.host.forget(uuid)


@asynccontextmanager
async def open_bench(
    case: Case, scripts: Mapping[str, Mapping[str, Any]], *, drain_s: float = 30.0, **settings: str
) -> AsyncIterator[Bench]:
    """Open an installation that claims and drives runs in this process; what runs after `drain_s` is cancelled."""
    loaded = Settings.load(environment(case, **settings))
    await asyncio.to_thread(migrate_database, loaded)
    async with open_installation(loaded, kind="runtime") as opened:
        here = _Here()
        sent = Sent(opened.runtime.parts.models)
        parts = replace(opened.runtime.parts, signals=here, models=sent)
        host = here.host = _WatchedHost(parts, opened.runtime.feed)
        runtime = Runtime(parts, opened.runtime.feed, host)
        await apply(runtime, case.folder, scripts)
        await host.start(claims=True)
        try:
            yield Bench(runtime=runtime, host=host, sent=sent)
        finally:
            await host.drain(timeout_s=drain_s)
