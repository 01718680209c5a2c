"""The HTTP tools against a real server that misbehaves in every way that matters."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from codec.vocabulary import FailureClass, TrustZone
from worker.adapters.tools import builtin
from worker.adapters.tools.http import MAX_RESPONSE_BYTES, HttpSender, Timeouts
from worker.adapters.tools.toolbox import PythonToolbox
from worker.ports.timeliness import performing
from worker.ports.toolbox import ToolCallInfo, ToolFault

MARKER = "planted-marker"
INFO = ToolCallInfo(run="run-1", call_id="c1", key="key-1", actor="ada")
SHORT = Timeouts(connect=5.0, read=0.2, total=5.0)


@dataclass(slots=True)
class Seen:
    """What the server has seen; `over` ends the requests that hang."""

    keys: Counter[str] = field(default_factory=Counter)
    paths: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    def __init__(self, seen: Seen, *args: Any) -> None:
        self.seen = seen
        super().__init__(*args)

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.seen.paths.append(self.path)
        self.seen.hosts.append(self.headers["Host"])
        self.seen.headers.append({name.lower(): value for name, value in self.headers.items()})
        if self.path == "/big":
            self.answer(200, b"x" * (3 * MAX_RESPONSE_BYTES))
        elif self.path == "/packed":
            self.answer(200, gzip.compress(b"x" * 1000), ("Content-Encoding", "gzip"))
        elif self.path == "/redirect":
            self.answer(302, MARKER.encode(), ("Location", f"/elsewhere?{MARKER}"))
        elif self.path == "/empty":
            self.answer(204, b"")
        elif self.path == "/hang":
            self.seen.over.wait(30)
        elif self.path == "/drip":
            self.drip()
        elif self.path.startswith("/status/"):
            self.answer(int(self.path.rpartition("/")[2]), MARKER.encode())
        else:
            self.answer(200, "grüße".encode(), ("Content-Type", "text/plain; charset=utf-8"), ("Set-Cookie", "a=b"))

    def do_POST(self) -> None:
        self.seen.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.keys[self.headers["Idempotency-Key"]] += 1
        if self.path == "/close":
            self.seen.paths.append(self.path)
            self.close_connection = True  # without a word of an answer
        else:
            self.do_GET()

    def answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        try:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the client has read enough

    def drip(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while not self.seen.over.wait(0.05):
                self.wfile.write(b".")
        except OSError:
            self.close_connection = True


@dataclass(slots=True, kw_only=True)
class Shop:
    """A toolbox, the server that it may reach, and what it told of failures."""

    toolbox: PythonToolbox
    seen: Seen
    port: int
    egress: dict[str, TrustZone]
    faults: list[tuple[str, str]]

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def get(self, url: str) -> str:
        return await self.toolbox.call("http_get", json.dumps({"url": url}), INFO, 20_000)

    async def post(self, url: str, body: object, info: ToolCallInfo = INFO) -> str:
        return await self.toolbox.call("post_json", json.dumps({"url": url, "body": body}), info, 20_000)


@pytest.fixture
def seen() -> Iterator[tuple[Seen, int]]:
    found = Seen()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, found))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield found, server.server_address[1]
    finally:
        found.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def shop(seen: tuple[Seen, int], monkeypatch: pytest.MonkeyPatch) -> Shop:
    known, port = seen
    egress = {f"127.0.0.1:{port}": TrustZone.LOCAL}
    faults: list[tuple[str, str]] = []

    async def live() -> Mapping[str, TrustZone]:
        return egress

    async def resolve(host: str, _: int) -> Sequence[str]:
        if host == "nowhere.example":
            raise OSError(MARKER)
        return ["127.0.0.1"]

    monkeypatch.setattr(builtin, "HttpSender", partial(HttpSender, timeouts=SHORT, resolve=resolve))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    toolbox = PythonToolbox([], files_root=None, egress=live, on_fault=lambda *fault: faults.append(fault))
    return Shop(toolbox=toolbox, seen=known, port=port, egress=egress, faults=faults)


def failure(caught: pytest.ExceptionInfo[ToolFault]) -> FailureClass:
    assert caught.value.__context__ is None
    assert MARKER not in repr(caught.value)
    return caught.value.failure


async def test_a_text_is_fetched_without_the_environments_proxy(shop: Shop) -> None:
    assert "grüße" == await shop.get(shop.url("/hello?a=%20b"))
    assert ["/hello?a=%20b"] == shop.seen.paths
    assert [f"127.0.0.1:{shop.port}"] == shop.seen.hosts


async def test_nothing_is_kept_from_one_call_to_the_next(shop: Shop) -> None:
    await shop.get(shop.url("/first"))
    await shop.get(shop.url("/second"))

    assert [True, True] == ["cookie" not in headers for headers in shop.seen.headers]


async def test_a_listed_name_is_looked_up_and_sent_as_the_host(shop: Shop) -> None:
    shop.egress["house.example"] = TrustZone.PRIVATE_HOSTED

    assert "grüße" == await shop.get(shop.url("/", host="House.example"))
    assert [f"house.example:{shop.port}"] == shop.seen.hosts


async def test_localhost_is_reached_when_it_is_listed(shop: Shop) -> None:
    shop.egress[f"localhost:{shop.port}"] = TrustZone.LOCAL

    assert "grüße" == await shop.get(shop.url("/", host="localhost"))


@pytest.mark.parametrize("verb", ["get", "post"])
@pytest.mark.parametrize("zone", [TrustZone.EXTERNAL_EU, TrustZone.EXTERNAL_GLOBAL])
async def test_a_name_outside_does_not_lead_inside(shop: Shop, verb: str, zone: TrustZone) -> None:
    shop.egress["public.example"] = zone

    with pytest.raises(ToolFault) as caught:
        if verb == "get":
            await shop.get(shop.url(f"/{MARKER}", host="public.example"))
        else:
            await shop.post(shop.url(f"/{MARKER}", host="public.example"), {MARKER: MARKER})

    assert FailureClass.NOT_EXECUTED == failure(caught)
    assert [] == shop.seen.paths


async def test_a_host_is_listed_live(shop: Shop) -> None:
    assert "grüße" == await shop.get(shop.url("/"))
    shop.egress.clear()

    with pytest.raises(ToolFault) as caught:
        await shop.get(shop.url("/"))

    assert FailureClass.NOT_EXECUTED == failure(caught)
    assert ["/"] == shop.seen.paths


async def test_a_redirect_is_not_followed_and_tells_its_status_only(shop: Shop) -> None:
    assert "HTTP error 302" == await shop.get(shop.url("/redirect"))
    assert "HTTP error 302" == await shop.post(shop.url("/redirect"), {})
    assert ["/redirect", "/redirect"] == shop.seen.paths


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
async def test_an_error_tells_its_status_only(shop: Shop, status: int) -> None:
    assert f"HTTP error {status}" == await shop.get(shop.url(f"/status/{status}"))
    assert f"HTTP error {status}" == await shop.post(shop.url(f"/status/{status}"), {MARKER: MARKER})
    assert [] == shop.faults


async def test_an_empty_answer_tells_its_status(shop: Shop) -> None:
    assert "HTTP 204" == await shop.get(shop.url("/empty"))


async def test_a_big_answer_is_cut(shop: Shop) -> None:
    found = await shop.get(shop.url("/big"))

    assert 50_000 == len(found)
    assert found.endswith("bytes]")


async def test_a_packed_answer_is_not_unpacked(shop: Shop) -> None:
    assert "The answer is compressed, which was not asked for." == await shop.get(shop.url("/packed"))
    assert "identity" == shop.seen.headers[0]["accept-encoding"]


async def test_a_post_carries_its_key_at_every_repetition(shop: Shop) -> None:
    for info in (INFO, INFO, ToolCallInfo(run="run-1", call_id="c2", key="key-2", actor="ada")):
        assert "grüße" == await shop.post(shop.url("/orders"), {"ä": [1, None]}, info)

    assert Counter({"key-1": 2, "key-2": 1}) == shop.seen.keys
    assert {'{"ä":[1,null]}'.encode()} == set(shop.seen.bodies)
    assert "application/json" == shop.seen.headers[0]["content-type"]


@pytest.mark.parametrize("path", ["/hang", "/close"])
async def test_after_the_request_was_sent_the_outcome_is_unknown(shop: Shop, path: str) -> None:
    with pytest.raises(ToolFault) as caught:
        await shop.post(shop.url(path), {MARKER: MARKER})

    assert FailureClass.RAISED == failure(caught)
    assert Counter({"key-1": 1}) == shop.seen.keys
    assert MARKER not in str(shop.faults)


@pytest.mark.parametrize("verb", ["get", "post"])
async def test_without_a_connection_nothing_has_happened(shop: Shop, verb: str) -> None:
    shop.egress |= {"127.0.0.1:1": TrustZone.LOCAL, "nowhere.example": TrustZone.EXTERNAL_EU}
    for url in (f"http://127.0.0.1:1/{MARKER}", f"http://nowhere.example/{MARKER}"):
        with pytest.raises(ToolFault) as caught:
            await (shop.get(url) if verb == "get" else shop.post(url, {MARKER: MARKER}))

        assert FailureClass.NOT_EXECUTED == failure(caught)

    assert MARKER not in str(shop.faults)


async def test_a_server_that_speaks_no_tls_got_no_request(shop: Shop) -> None:
    with pytest.raises(ToolFault) as caught:
        await shop.post(f"https://127.0.0.1:{shop.port}/", {MARKER: MARKER})

    assert FailureClass.NOT_EXECUTED == failure(caught)
    assert [] == shop.seen.bodies


async def test_a_slow_answer_ends_with_the_call(shop: Shop) -> None:
    arguments = json.dumps({"url": shop.url("/drip")})

    with pytest.raises(ToolFault) as caught:
        await shop.toolbox.call("http_get", arguments, INFO, 500)

    assert FailureClass.TIMEOUT == failure(caught)


async def test_a_slow_answer_ends_by_itself(seen: tuple[Seen, int]) -> None:
    async def live() -> Mapping[str, TrustZone]:
        return {"127.0.0.1": TrustZone.LOCAL}

    sender = HttpSender(live, timeouts=Timeouts(connect=5.0, read=5.0, total=0.3))

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await sender.send("GET", f"http://127.0.0.1:{seen[1]}/drip", {}, None)


async def test_nothing_leaves_under_a_permit_that_grew_too_old_while_connecting(shop: Shop) -> None:
    with performing(lambda: False), pytest.raises(ToolFault) as caught:
        await shop.get(shop.url("/text"))

    # Not `not_executed`: the model would be told that an approved write did nothing. It gets another permit.
    assert FailureClass.PERMIT_EXPIRED is failure(caught)
    assert [] == shop.seen.paths
