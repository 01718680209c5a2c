"""One long run by ours: 200 model calls, 1 KB of new text in each round. What does it take, and what does it keep?"""

from __future__ import annotations

from typing import Any, Final

from bench import work
from bench.installation import call, open_bench, request
from bench.measuring import Case, usage
from bench.storage import PAYLOADS, stored
from codec.actor import LOCAL
from codec.vocabulary import RunStatus

__all__ = ["measure"]

_ROUNDS: Final = 200


async def measure(case: Case) -> dict[str, Any]:
    """Measure one run; a short one goes before it."""
    pages = [{"tool_calls": [call("read_page", {"page": page})]} for page in range(1, _ROUNDS)]
    last = {"text": work.ANSWER}
    scripts = {"long": {"reply": [*pages, last]}, "short": {"reply": [pages[0], last]}}
    async with open_bench(case, scripts) as bench:
        await bench.rest((await bench.runtime.enqueue(request("short"))).uuid)
        stored_before, before = await stored(case, PAYLOADS), usage()
        uuid = (await bench.runtime.enqueue(request("long"))).uuid
        await bench.rest(uuid)
        after, stored_after = usage(), await stored(case, PAYLOADS)
        row = await bench.runtime.row(LOCAL, uuid)
        assert row.status is RunStatus.COMPLETED and bench.sent.counts[uuid] == _ROUNDS, (
            row.reason,
            bench.sent.counts[uuid],
        )
    content = len(work.SYSTEM) + len(work.PROMPT) + len(work.ANSWER) + (_ROUNDS - 1) * work.PAGE_BYTES
    return {
        "seconds": after.wall_s - before.wall_s,
        "cpu_s": after.cpu_s - before.cpu_s,
        "content_bytes": content,
        "payload_bytes": stored_after.payload - stored_before.payload,
        "disk_bytes": stored_after.disk - stored_before.disk,
    }
