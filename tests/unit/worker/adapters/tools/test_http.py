from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

from codec.vocabulary import TrustZone
from worker.adapters.tools import http
from worker.adapters.tools.http import HttpSender, http_tools
from worker.adapters.tools.results import preview_lines
from worker.ports.toolbox import NotExecuted, RegisteredTool

EGRESS: Mapping[str, TrustZone] = {
    "public.example": TrustZone.EXTERNAL_GLOBAL,
    "house.example": TrustZone.PRIVATE_HOSTED,
    "10.0.0.1": TrustZone.LOCAL,
}

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def egress() -> Mapping[str, TrustZone]:
    return EGRESS


def resolving(*addresses: str) -> tuple[Resolve, list[tuple[str, int]]]:
    """A resolver that gives these addresses, and the list of what it was asked."""
    asked: list[tuple[str, int]] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append((host, port))
        return addresses

    return resolve, asked


def post() -> RegisteredTool:
    return next(one for one in http_tools(HttpSender(egress)) if one.facts.name == "post_json")


def lines(url: str, body: dict[str, Any]) -> tuple[str, ...]:
    preview = post().preview
    assert preview is not None
    return preview_lines(preview(url=url, body=body))


# --- Where nothing is sent to (a connection would be refused by the test's own network anyway) --------------


@pytest.mark.parametrize(
    "url",
    [
        "http://unlisted.example/",
        "http://sub.public.example/",
        "http://10.0.0.2/",
        "ftp://public.example/",
        "http://ada:word@public.example/",
        "http://public.example\\@unlisted.example/",
        "",
    ],
)
async def test_a_host_that_is_not_listed_is_not_even_looked_up(url: str) -> None:
    resolve, asked = resolving("93.184.216.34")

    with pytest.raises(NotExecuted) as caught:
        await HttpSender(egress, resolve=resolve).send("GET", url, {}, None)

    assert [] == asked
    assert "" == str(caught.value)


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("http://public.example/", ["127.0.0.1"]),
        ("http://public.example/", ["93.184.216.34", "10.0.0.1"]),
        ("http://public.example/", ["::ffff:127.0.0.1"]),
        ("http://house.example/", ["169.254.169.254"]),
        ("http://house.example/", ["224.0.0.1"]),
        ("http://house.example/", []),
        ("http://10.0.0.1/", ["127.0.0.1"]),
    ],
)
async def test_a_name_that_leads_astray_is_not_connected(
    monkeypatch: pytest.MonkeyPatch, url: str, addresses: list[str]
) -> None:
    async def connected(*_: object) -> str:
        raise AssertionError("connected")

    monkeypatch.setattr(HttpSender, "_exchange", connected)
    resolve, asked = resolving(*addresses)

    with pytest.raises(NotExecuted):
        await HttpSender(egress, resolve=resolve).send("GET", url, {}, None)

    assert 1 == len(asked)


async def test_whatever_fails_before_the_request_has_sent_nothing() -> None:
    async def broken() -> Mapping[str, TrustZone]:
        raise RuntimeError("planted-marker")

    with pytest.raises(NotExecuted) as caught:
        await HttpSender(broken).send("POST", "http://public.example/", {}, b"{}")

    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


# --- What is sent -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "address", "target", "host"),
    [
        (
            "https://public.example/a%20b?c=%2F#d",
            "93.184.216.34",
            "https://93.184.216.34/a%20b?c=%2F",
            "public.example",
        ),
        ("http://house.example:81", "fd00::1", "http://[fd00::1]:81", "house.example:81"),
    ],
)
async def test_the_connection_goes_to_the_checked_address_in_the_hosts_name(
    monkeypatch: pytest.MonkeyPatch, url: str, address: str, target: str, host: str
) -> None:
    sent: list[Any] = []

    async def exchange(_: HttpSender, request: Any) -> str:
        sent.append(request)
        return "answer"

    monkeypatch.setattr(HttpSender, "_exchange", exchange)
    resolve, asked = resolving(address)

    assert "answer" == await HttpSender(egress, resolve=resolve).send("GET", url, {}, None)
    assert 1 == len(asked)
    assert target == str(sent[0].url)
    assert host == sent[0].headers["host"]
    assert host.partition(":")[0] == sent[0].extensions["sni_hostname"]


# --- What comes back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        (b"caf\xc3\xa9", None, "café"),
        (b"caf\xe9", "ISO-8859-1", "café"),
        (b"caf\xe9", "windows-1252", "café"),
        (b"caf\xe9", None, "caf\ufffd"),
        (b"abc", "rot13", "abc"),
        (b"abc", "unicode_escape", "abc"),
        (b"abc", "no such thing", "abc"),
        (b"abc", "\x00", "abc"),
    ],
)
def test_only_charsets_are_charsets(body: bytes, charset: str | None, text: str) -> None:
    assert text == http._decode(body, charset)


# --- What a person is shown ---------------------------------------------------------------------------------


def test_a_preview_shows_where_to_and_how_much_and_the_names_but_no_value() -> None:
    found = lines("https://public.example/x?y=1", {"title": "planted-marker", "ä": {"inner": 1}})

    assert (
        "POST https://public.example/x?y=1",
        "Body: 43 bytes of JSON",
        "Keys: title, ä",
    ) == found


def test_a_preview_is_short() -> None:
    assert "Keys: none" == lines("https://public.example/", {})[-1]
    assert lines("https://public.example/", {str(n): n for n in range(23)})[-1].endswith("19 and 3 more")
