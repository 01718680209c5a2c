"""Text and JSON from outside: one rule at every entrance."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from codec.errors import CodecError
from codec.text import (
    MAX_DEPTH,
    MAX_INT_DIGITS,
    MAX_TEXT_BYTES,
    clean_json,
    clean_text,
    dump_json,
    parse_json,
    parse_object,
)
from tests.support.strategies import ANY_TEXT, JSON

LARGEST = 10**MAX_INT_DIGITS - 1


def nested(levels: int, opening: str = "[", closing: str = "]") -> str:
    return opening * levels + closing * levels


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", ""),
        ("a\x00b", "a\ufffdb"),
        ("\ud800", "\ufffd"),
        ("\udc00x", "\ufffdx"),
        ("a\ud800", "a\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        ("\ufeff\u200b\x01\x7f\u2028", "\ufeff\u200b\x01\x7f\u2028"),
    ],
)
def test_only_nul_and_lone_surrogates_are_replaced(given: str, expected: str) -> None:
    """A pair that belongs together is one character, whatever else stands around it."""
    assert expected == clean_text(given)


@given(ANY_TEXT)
@example("\ud83d\ude00\ud83d")
def test_cleaning_text_is_idempotent_and_leaves_what_can_be_stored(text: str) -> None:
    """Clean text encodes as UTF-8, holds no NUL and does not change again."""
    cleaned = clean_text(text)

    assert cleaned == clean_text(cleaned)
    assert cleaned.encode().decode() == cleaned
    assert "\x00" not in cleaned


def test_a_text_is_bounded_in_bytes_not_in_characters() -> None:
    """Three megabytes pass; one byte over the bound does not, however few characters it has."""
    assert 3_000_000 == len(clean_text("x" * 3_000_000))
    assert clean_text("x" * MAX_TEXT_BYTES)
    for text in ("x" * (MAX_TEXT_BYTES + 1), "ä" * (MAX_TEXT_BYTES // 2 + 1), "\U0001f600" * (MAX_TEXT_BYTES // 4 + 1)):
        with pytest.raises(CodecError, match="longer than"):
            clean_text(text)


@pytest.mark.parametrize(
    "value",
    [
        0,
        1,
        -1,
        2**63,
        2**64 + 10**18,
        2**256 - 1,
        -(2**256),
        LARGEST,
        -LARGEST,
        1.0,
        0.5,
        True,
        False,
        None,
        "",
        [],
        {},
    ],
)
def test_values_survive_exactly(value: Any) -> None:
    """Integers of any size up to the bound, and the values that look like absences."""
    found = parse_json(json.dumps(value))

    assert repr(value) == repr(found) == repr(clean_json(value))
    assert parse_json(dump_json(value)) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("NaN", "finite"),
        ("[Infinity]", "finite"),
        ('{"a":-Infinity}', "finite"),
        ("1e400", "finite"),
        ("-1e400", "finite"),
        ("1" * (MAX_INT_DIGITS + 1), "digits"),
        ("-" + "1" * (MAX_INT_DIGITS + 1), "digits"),
        ("9" * 5_000, "digits"),
        ('{"a":1,"a":1}', "repeated key"),
        ('[{"b":{"a":1,"a":2}}]', "repeated key"),
        (r'{"\u0000":1,"\ufffd":2}', "repeated key"),
        (r'{"\ud800":1,"\udfff":2}', "repeated key"),
        ("", "not valid"),
        ("not json", "not valid"),
        ('{"a":1} x', "not valid"),
        ("{'a':1}", "not valid"),
        ("[1,]", "not valid"),
        ('"a\nb"', "not valid"),
        ('"\\x"', "not valid"),
        ("\ufeff{}", "not valid"),
        ("+1", "not valid"),
        ("01", "not valid"),
        (".5", "not valid"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_what_breaks_a_rule_is_refused_with_the_rules_name(text: str, problem: str) -> None:
    """Nothing is repaired or guessed, as text and as bytes."""
    for data in (text, text.encode("utf-8", "surrogatepass")):
        with pytest.raises(CodecError, match=problem):
            parse_json(data)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 10**MAX_INT_DIGITS, {1: 2}, {"a": {2}}, object(), b"x"],
    ids=lambda value: repr(value)[:12],
)
def test_code_may_not_hand_over_what_json_cannot_hold(value: Any) -> None:
    """The same rules for values as for their text, and never another error."""
    with pytest.raises(CodecError):
        clean_json(value)
    with pytest.raises(CodecError):
        dump_json([value])


def test_a_value_that_holds_itself_is_refused() -> None:
    """A circle is only very deep."""
    circle: list[Any] = []
    circle.append(circle)

    with pytest.raises(CodecError, match="deeper"):
        clean_json(circle)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_depth_is_bounded_before_anything_is_built(opening: str, closing: str) -> None:
    """Five thousand levels are refused, also unclosed; the bound itself passes."""
    step = opening.count("[") + opening.count("{")
    core = "1"
    for _ in range(MAX_DEPTH // step):
        core = f"{opening}{core}{closing}"
    assert parse_json(core) is not None
    for text in (opening + core + closing, nested(5_000, opening, closing), opening * 5_000):
        with pytest.raises(CodecError, match="deeper"):
            parse_json(text)


def test_brackets_inside_strings_are_no_depth() -> None:
    """Strings with brackets, quotes and backslashes in any number."""
    for inner in ("[" * 5_000, '\\"[{' * 2_000, "\\\\" * 3_000 + "[" * 100):
        text = json.dumps({"a": inner, "b": [inner]})
        assert {"a": inner, "b": [inner]} == parse_json(text)


def test_long_and_hostile_documents_are_read_in_linear_time() -> None:
    """A megabyte of quotes, backslashes and brackets; quadratic time would take minutes."""
    begun = time.process_time()
    for part in ('"', "\\", '"\\', "[", "]", "1"):
        with pytest.raises(CodecError):
            parse_json(part * (1_000_000 // len(part)))
    assert "x" * 3_000_000 == parse_json(json.dumps("x" * 3_000_000))

    assert time.process_time() - begun < 60  # what is not linear takes hours


@given(st.binary(max_size=200))
@example(b"\xff\xfe{\x00}\x00")
@example(b"\xfe\xff\x00{\x00}")
@example(b"\xef\xbb\xbf{}")
@example(b"\xed\xa0\x80")
@example(b'"\xed\xa0\xbd\xed\xb8\x80"')
@example(b"{\x00}\x00")
def test_any_bytes_give_a_value_or_a_codec_error(data: bytes) -> None:
    """Never another exception; what is read is clean and can be written again."""
    try:
        value = parse_json(data)
    except CodecError:
        return
    assert parse_json(dump_json(value)) == value


@given(JSON)
def test_clean_values_survive_writing_and_reading(value: Any) -> None:
    """Reading what was written gives the value; cleaning a clean value changes nothing."""
    assert value == clean_json(value) == parse_json(dump_json(value))


@pytest.mark.parametrize("text", ["5", '"x"', "null", "true", "[]", "[{}]"])
def test_only_an_object_is_an_object(text: str) -> None:
    """T96: whatever else JSON can be."""
    with pytest.raises(CodecError, match="not an object"):
        parse_object(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"MARKER":1,"MARKER":2}',
        '{"MARKER":NaN}',
        '{"MARKER',
        '["MARKER",1e999]',
        '{"MARKER":{"a":[' + "[" * 90,
        "MARKER",
    ],
)
def test_no_error_holds_a_word_of_what_was_read(text: str) -> None:
    """Neither in its message nor in any error behind it."""
    with pytest.raises(CodecError) as caught:
        parse_json(text)

    error: BaseException | None = caught.value
    while error is not None:
        assert "MARKER" not in f"{error!r} {vars(error)}"
        error = error.__cause__ or error.__context__
