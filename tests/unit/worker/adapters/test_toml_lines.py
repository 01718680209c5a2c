"""Lines of tables and keys in TOML documents."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.adapters.toml_lines import Place, line_map, line_of

DOCUMENT = '''\
# a comment with [[brackets]] = "and quotes
top = 1
"quoted key" = 2
a.b . "c" = 1979-05-27 07:32:00 # trailing

[table]
long = """
[[not.a.table]]
key = 5
"""   # after
raw = \'\'\'
# no comment \\\'\'\'
five = """"five"""""
list = [
  1.5, # comment ]
  "x,]",
  { x = [1,
    2], y = 3 },

]
[[array]]
x = 1
[array.sub]
y = { a = "}", b.c = '{' }
[[array]]
[[array.inner]]
[[array.inner]]
z = -inf
[["array"]] # spelled otherwise
last = true'''


def places(value: Any, place: Place = ()) -> set[Place]:
    """Give the place of everything that a parsed document holds."""
    found: set[Place] = {place} if place else set()
    if isinstance(value, dict):
        for key, item in value.items():
            found |= places(item, (*place, key))
    if isinstance(value, list):
        for position, item in enumerate(value):
            found |= places(item, (*place, position))
    return found


def test_each_thing_has_its_line() -> None:
    """Long strings, comments and nested arrays count their lines and hide what looks like keys."""
    expected: dict[Place, int] = {
        ("top",): 2,
        ("quoted key",): 3,
        ("a", "b", "c"): 4,
        ("table",): 6,
        ("table", "long"): 7,
        ("table", "raw"): 11,
        ("table", "five"): 13,
        ("table", "list"): 14,
        ("table", "list", 0): 15,
        ("table", "list", 1): 16,
        ("table", "list", 2): 17,
        ("table", "list", 2, "x", 1): 18,
        ("table", "list", 2, "y"): 18,
        ("array",): 21,
        ("array", 0): 21,
        ("array", 0, "x"): 22,
        ("array", 0, "sub"): 23,
        ("array", 0, "sub", "y", "b", "c"): 24,
        ("array", 1): 25,
        ("array", 1, "inner", 0): 26,
        ("array", 1, "inner", 1): 27,
        ("array", 1, "inner", 1, "z"): 28,
        ("array", 2): 29,
        ("array", 2, "last"): 30,
    }

    lines = line_map(DOCUMENT)

    assert expected == {place: lines.get(place) for place in expected}
    assert places(tomllib.loads(DOCUMENT)) == set(lines)


def test_windows_line_ends_count_once() -> None:
    """Inside of long strings too."""
    windows = DOCUMENT.replace("\n", "\r\n")

    assert line_map(DOCUMENT) == line_map(windows)


def test_what_has_no_line_has_that_of_what_is_around_it() -> None:
    """The nearest thing that stands in the document, else its first line."""
    lines = line_map("\n[[a]]\nb = 1")

    assert (3, 2, 2, 1) == (
        line_of(lines, ("a", 0, "b")),
        line_of(lines, ("a", 0, "missing")),
        line_of(lines, ("a", 5)),
        line_of(lines, ("x",)),
    )


@pytest.mark.parametrize("document", ["", "\n\n", "# only", "a = 1", "a = [\n]", "a = {}", "[a]", "[[a]]"])
def test_small_documents(document: str) -> None:
    """Every place that the parser finds has a line, and nothing else has."""
    assert places(tomllib.loads(document)) == set(line_map(document))


KEYS = st.sampled_from(["a", "b1", "c-d", '"e f"', "'g'", '"h.\\"[i"', '"\\u00e9"'])
SCALARS = st.sampled_from(
    ["1", "-1.5e3", "true", "nan", "07:32:00", '"x"', '"\\"]#"', "'\\'", '"""a\n"b" ]\\""" # """""', "'''\n#'x'\n'''"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[ # [\n" + ",\n ".join(items) + "\n]"),
        st.dictionaries(KEYS, inner, max_size=3).map(
            lambda pairs: "{ " + ", ".join(f"{key} = {value}" for key, value in pairs.items()) + " }"
        ),
    ),
    max_leaves=6,
)
PAIRS = st.dictionaries(KEYS, VALUES, max_size=3)


@given(st.lists(st.tuples(st.booleans(), PAIRS, st.integers(0, 2)), max_size=5))
def test_every_place_of_any_document_has_the_line_of_its_key(tables: list[tuple[bool, dict[str, str], int]]) -> None:
    """Against documents whose lines are known by construction."""
    text, expected, counts = "", {}, 0
    for number, (is_element, pairs, blanks) in enumerate(tables):
        text += "\n" * blanks
        table: Place = ("rows", counts) if is_element else (f"table{number}",)
        counts += is_element
        expected[table] = text.count("\n") + 1
        text += "[[rows]]\n" if is_element else f"[ table{number} ] # [[x]]\n"
        for key, value in pairs.items():
            expected[*table, next(iter(tomllib.loads(f"{key} = 0")))] = text.count("\n") + 1
            text += f"{key} = {value}\n"

    lines = line_map(text)

    assert expected == {place: lines.get(place) for place in expected}
    assert places(tomllib.loads(text)) == set(lines)
