"""The fast way of reading what we wrote ourselves must take nothing that the strict reader would refuse or mend."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.errors import CodecError
from codec.text import MAX_DEPTH, MAX_INT_DIGITS, MAX_TEXT_BYTES, dump_json, parse_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_both_ways_give_the_same(value: Any) -> None:
    compact = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    spaced = json.dumps(value, ensure_ascii=True, indent=1)

    assert _read(compact) == _read(spaced) == _read(dump_json(_read(spaced)))


def _read(text: str) -> Any:
    try:
        return parse_json(text)
    except CodecError as error:
        return error.problem  # keys that become equal once they are cleaned


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '{"a":' + "9" * (MAX_INT_DIGITS + 1) + "}",
        '["' + "x" * 999 + '",' + "1" * (MAX_INT_DIGITS + 1) + "]",
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        '"' + "x" * MAX_TEXT_BYTES + '"',
        "NaN",
        "1e999",
        "",
    ],
    ids=["repeated key", "huge integer", "huge integer later", "too deep", "too long", "NaN", "infinite", "nothing"],
)
def test_what_is_refused_is_refused_in_our_own_spelling_too(text: str) -> None:
    with pytest.raises(CodecError):
        parse_json(text)


def test_an_integer_at_the_bound_survives() -> None:
    number = 10**MAX_INT_DIGITS - 1

    assert [number, "x"] == parse_json(f'[{number},"x"]')


def test_an_escaped_nul_is_replaced() -> None:
    assert ["\ufffd"] == parse_json('["\\u0000"]')
