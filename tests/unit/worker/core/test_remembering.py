"""Remembering by identity gives what the function gives, and keeps a bounded number of results."""

from __future__ import annotations

import gc
import weakref

from worker.core import remembering
from worker.core.remembering import remembered


class Value:
    """Something with an identity."""


def test_the_same_objects_give_the_same_result_without_a_second_call() -> None:
    calls: list[tuple[object, object]] = []

    @remembered
    def pair(first: object, second: object) -> tuple[object, object]:
        calls.append((first, second))
        return first, second

    one, other = Value(), Value()

    assert pair(one, other) is pair(one, other)
    assert (other, one) == pair(other, one)
    assert [(one, other), (other, one)] == calls


def test_equal_objects_are_not_the_same() -> None:
    @remembered
    def first_of(items: list[int]) -> int:
        return items[0]

    assert [1, 2] == [first_of([1]), first_of([2])]


def test_named_arguments_are_passed_on() -> None:
    @remembered
    def power(base: int, exponent: int) -> int:
        return int(base**exponent)

    assert [8, 9] == [power(2, exponent=3), power(3, exponent=2)]


def test_what_is_remembered_stays_alive_and_is_forgotten_when_there_is_too_much() -> None:
    @remembered
    def identity(value: Value) -> int:
        return id(value)

    value = Value()
    gone = weakref.ref(value)
    identity(value)
    del value
    gc.collect()
    assert gone() is not None  # else another object could take its place and its result

    kept = [Value() for _ in range(remembering._MOST)]
    for other in kept:
        identity(other)
    gc.collect()
    assert gone() is None
