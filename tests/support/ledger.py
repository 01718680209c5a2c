"""A server outside of every worker that counts what really arrived: writes by their key, sends by run and round.

It takes the writes of `post_json` and stands in for an OpenAI-compatible model, so it knows of what a process did even
when that process died before it heard of it. Each run under test has a path of its own, its story. A hook may act on a
request after it was counted and before it is answered: kill its sender, or keep it waiting.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from tests.support.openai_server import completion

__all__ = ["Ledger", "Story", "ledger"]

Hook = Callable[[int], object]
"""Gets the number of the request, from 1, of its kind and story. Called on the request's own thread."""
_GRACE_S: Final = 30.0


@dataclass(slots=True)
class Story:
    """What arrived for one run, and what its model says: the n-th reply to n-1 answers, `fails` = rounds that get 500.

    `writes` counts keys; `sends` counts rounds.
    """

    replies: Sequence[Mapping[str, Any]] = ()
    fails: frozenset[int] = frozenset()
    delay_s: float = 0.0
    on_write: Hook | None = None
    on_send: Hook | None = None
    writes: Counter[str] = field(default_factory=Counter)
    sends: Counter[int] = field(default_factory=Counter)
    send_at: list[tuple[int, float]] = field(default_factory=list)
    """Round and monotonic second of every send."""


class Ledger:
    """Made by `ledger`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stories: dict[str, Story] = {}
        self._guard = threading.Lock()

    def tell(self, name: str, story: Story) -> Story:
        """Begin a story."""
        with self._guard:
            self._stories[name] = story
        return story

    def model_url(self, name: str) -> str:
        """Give the `base_url` of the model of a story."""
        return f"{self._url}/{name}/v1"

    def write_url(self, name: str) -> str:
        """Give the URL that takes the writes of a story."""
        return f"{self._url}/{name}/writes"

    def take(self, path: str, key: str, body: Any) -> tuple[int, Any]:
        """Count a request, let its hook act, and give status and document of the answer."""
        name, _, rest = path.strip("/").partition("/")
        story = self._stories[name]
        if rest == "writes":
            with self._guard:
                story.writes[key] += 1
                number = story.writes.total()
            _act(story.on_write, number)
            return 201, {"ticket": number}
        turn = 1 + sum(message["role"] == "assistant" for message in body["messages"])
        with self._guard:
            story.sends[turn] += 1
            story.send_at.append((turn, time.monotonic()))
            number = story.sends.total()
        _act(story.on_send, number)
        if story.delay_s:
            time.sleep(story.delay_s)
        if turn in story.fails:
            return 500, {}
        said = story.replies[min(turn, len(story.replies)) - 1]
        return 200, completion(_message(said), "tool_calls" if said.get("tool_calls") else "stop")


def _act(hook: Hook | None, number: int) -> None:
    if hook is not None:
        hook(number)


def _message(said: Mapping[str, Any]) -> dict[str, Any]:
    calls = [
        {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": json.dumps(c["arguments"])}}
        for c in said.get("tool_calls", ())
    ]
    return {"role": "assistant", "content": said.get("text", "")} | ({"tool_calls": calls} if calls else {})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512  # hundreds of workers' runs may send at once

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # its sender died
            super().handle_error(request, client_address)


@contextmanager
def ledger() -> Iterator[Ledger]:
    """Serve on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            raw = self.rfile.read(length)
            if len(raw) < length:  # its sender died on the way: nothing was asked
                return
            body = json.loads(raw)
            status, document = kept.take(self.path, self.headers["Idempotency-Key"], body)
            data = json.dumps(document).encode()
            with suppress(OSError):  # whoever asked is dead
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Say nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    kept = Ledger(f"http://127.0.0.1:{server.server_port}")
    serving = threading.Thread(target=server.serve_forever, name="ledger")
    serving.start()
    try:
        yield kept
    finally:
        server.shutdown()
        serving.join(_GRACE_S)
        server.server_close()
