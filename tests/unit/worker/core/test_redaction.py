"""Secret shapes never leave, and nothing else is touched."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from codec.request import ModelOptions
from codec.transcript import Message, SignedPart, ToolCall
from codec.vocabulary import Role
from worker.core.redaction import MASK, redact
from worker.core.turns import outgoing, request_hash

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"
SECRETS = (
    "sk-abcdefghijklmnop1234",
    "sk-proj-abc_DEF-ghijklmnop",
    "ghp_abcdefghijklmnopqrst1234",
    "gho_abcdefghijklmnopqrst1234",
    "github_pat_11ABCDEFG0123456789_abcdef",
    "AKIAIOSFODNN7EXAMPLE",
    "ASIAIOSFODNN7EXAMPLE",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "xoxb-1234567890-abcdef",
    "xoxp-1234567890-abcdef",
    JWT,
)
CLEAN = (
    "",
    "sk-8",
    "task-force and risk-averse-but-long-enough-words",
    "The bearer of this letter",
    "Bearer of bad news",
    "key=value without a question mark",
    "https://example.com/path?page=2&sort=name#top",
    "http://user@example.com/",
    "mailto:a@example.com, time 12:30@noon",
    "eyJ is how it begins",
    "AKIA and ASIA, AKIAIOSFODNN7EXAMPL",
    "xox-love-and-kisses",
    "a.b.c",
    MASK,
)
BEGINNINGS = ("Bearer ", "?key=", "&token=", "http://u:", "ftp://x.y:", "@h", "/", ".", "-", "_", "eyJ", "a" * 30, '"')
PIECES = st.sampled_from((*SECRETS, *CLEAN, *BEGINNINGS, " ", "="))
HOSTILE = (
    *("-eyJaaaa", "eyJaaaaaaaa.", "eyJ", "Bearer ", "http://", "a://b:", "http://u:pw", "?key=", "sk-", "ghp_"),
    *("xoxb-", "AKIA", "a.b+c-", "@", " "),
)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("around", ["{}", "my key: {}.", "({})", "a\n{}\nb", '"{}"', "x={} y", "ä{}ö", "{}," * 3])
def test_each_shape_is_masked_wherever_it_stands(secret: str, around: str) -> None:
    """T216, in whatever stands around it."""
    if around == "ä{}ö":
        around = "ä {} ö"

    found = redact(around.replace("{}", secret))

    assert secret not in found
    assert MASK in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Bearer abc.DEF-123+/==", f"Authorization: Bearer {MASK}"),
        ("Bearer  sk-abcdefghijklmnop1234.tail.tail", f"Bearer  {MASK}"),
        ("GET /a?api_key=abc&x=1", f"GET /a?api_key={MASK}&x=1"),
        ("/a?x=1&TOKEN=abc#f", f"/a?x=1&TOKEN={MASK}#f"),
        ("/?access-token=a/b@c", f"/?access-token={MASK}"),
        ("postgres://regate:p:w%40d@db:5432/x", f"postgres://regate:{MASK}@db:5432/x"),
        ("redis://:secret@host", f"redis://:{MASK}@host"),
        (f"http://u:pw-{JWT}{'a' * 400}@h/", f"http://u:{MASK}@h/"),
        (f"token {JWT}, and more", f"token {MASK}, and more"),
        (f"-{JWT}", f"-{MASK}"),
    ],
)
def test_what_is_no_secret_stays_beside_it(text: str, expected: str) -> None:
    """Scheme, user, host, the parameter's name and the words around."""
    assert expected == redact(text)


@pytest.mark.parametrize("text", CLEAN)
def test_clean_text_is_unchanged(text: str) -> None:
    """What only looks similar."""
    assert text == redact(text)


@given(st.lists(PIECES | st.text(max_size=4), max_size=8).map("".join))
@example("http://u:pw-" + "eyJ" + "a" * 300 + ".bbbbbbbbbb.cc@h")
@example("Bearer sk-abcdefghijklmnop1234.tail")
def test_redaction_is_idempotent(text: str) -> None:
    """What was redacted is clean, however the shapes stand inside each other."""
    assert redact(text) == redact(redact(text))


@pytest.mark.parametrize("part", HOSTILE)
def test_hostile_texts_take_linear_time(part: str) -> None:
    """A long row of what each shape begins with; quadratic time would take minutes."""
    text = part * (300_000 // len(part))
    begun = time.process_time()
    redact(text)

    assert time.process_time() - begun < 60  # what is not linear takes hours


def test_everything_that_leaves_is_redacted_and_hashed_as_it_leaves() -> None:
    """Contents and arguments; what another model signed stays behind; the transcript is as it was."""
    secret = SECRETS[0]
    message = Message(
        role=Role.ASSISTANT,
        content=f"use {secret}",
        tool_calls=(ToolCall(id="c", name="t", arguments=f'{{"key":"{secret}"}}'),),
        signed=(SignedPart(served_by="m", data="mine"), SignedPart(served_by="n", data="theirs")),
    )

    sent = outgoing((message,), (), ModelOptions(), "m").messages[0]

    assert (f"use {MASK}", f'{{"key":"{MASK}"}}') == (sent.content, sent.tool_calls[0].arguments)
    assert ["mine"] == [part.data for part in sent.signed]
    assert secret in message.content


def test_the_hash_covers_model_messages_tools_and_options() -> None:
    """Equal requests, equal hashes; anything that differs shows."""
    message = Message(role=Role.USER, content="x")
    plain = outgoing((message,), (), ModelOptions(), "m")

    hashes = {
        request_hash(plain, "m"),
        request_hash(plain, "n"),
        request_hash(outgoing((message, message), (), ModelOptions(), "m"), "m"),
        request_hash(outgoing((message,), (), ModelOptions(seed=1), "m"), "m"),
    }

    assert 4 == len(hashes)
    assert request_hash(plain, "m") == request_hash(outgoing((message,), (), ModelOptions(), "m"), "m")
