"""Fitting the transcript: the estimate's numbers, what is dropped, and what never is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.transcript import Message, ToolCall
from codec.vocabulary import Role
from tests.support.builders import LOOK
from worker.core.window import FIRST_CALIBRATION, Fit, fit, recalibrated


def user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


def turn(number: int, size: int) -> tuple[Message, ...]:
    call = ToolCall(id=f"c{number}", name="look", arguments="{}")
    return (
        Message(role=Role.ASSISTANT, content="a" * size, tool_calls=(call,)),
        Message(role=Role.TOOL, content="r" * size, tool_call_id=f"c{number}"),
    )


def fitted(*messages: Message, window: int = 8192, max_tokens: int | None = None, calibration: float = 1.0) -> Fit:
    return fit(messages, (), context_length=window, max_tokens=max_tokens, calibration=calibration)


def test_the_estimate_counts_prose_dense_text_and_overhead() -> None:
    """Prose 3.5 and dense text 2.5 bytes a token, each rounded up; 8 a message, 12 a call; `[]` for no tools."""
    messages = (user("x" * 10), *turn(1, 20))
    prose, dense = 10 + 20, 20 + len("c1") + len("c1") + len("{}") + len("[]")

    assert math.ceil(prose / 3.5) + math.ceil(dense / 2.5) + 3 * 8 + 12 == fitted(*messages).estimate


def test_the_estimate_counts_bytes_not_characters() -> None:
    """Also in what tools return."""
    assert fitted(user("ä" * 100)).estimate == fitted(user("aa" * 100)).estimate


def test_the_estimate_is_scaled_and_never_below_one() -> None:
    """Calibration 1.15 at first; one below 1 counts as 1."""
    plain = fitted(user("x" * 1000)).estimate

    assert math.ceil(plain * FIRST_CALIBRATION) == fitted(user("x" * 1000), calibration=FIRST_CALIBRATION).estimate
    assert plain == fitted(user("x" * 1000), calibration=0.5).estimate


@pytest.mark.parametrize(
    ("window", "max_tokens", "budget"),
    [
        (8192, None, 8192 - 1000 - 246),
        (0, None, 8192 - 1000 - 246),
        (-5, None, 8192 - 1000 - 246),
        (128_000, None, 128_000 - 2560 - 3840),
        (8192, 512, 8192 - 512 - 246),
    ],
)
def test_the_budget_is_window_less_reserve_less_safety(window: int, max_tokens: int | None, budget: int) -> None:
    """T219: window 8192 when unknown; reserve max_tokens, else 2 percent and at least 1000; safety 3 percent."""
    fits = (budget - 8 - 1) * 7 // 2  # one token is the empty list of tools

    assert not fitted(user("x" * fits), window=window, max_tokens=max_tokens).overflow
    assert fitted(user("x" * (fits + 8)), window=window, max_tokens=max_tokens).overflow


def test_a_window_smaller_than_its_reserve_passes_unmeasured() -> None:
    """Nothing is known about such a window."""
    found = fitted(user("x" * 10_000), window=900)

    assert (0, False) == (found.estimate, found.overflow)


def test_whole_oldest_turns_go_and_the_head_and_the_newest_stay() -> None:
    """T220: no turn is cut, so no result is left without its call."""
    head = (Message(role=Role.SYSTEM, content="s"), user("q"))
    turns = [turn(number, 4000) for number in range(6)]

    found = fitted(*head, *(m for t in turns for m in t))

    assert head == found.messages[:2]
    assert turns[-1] == found.messages[-2:]
    kept = (len(found.messages) - 2) // 2
    assert 0 < kept < 6
    assert tuple(m for t in turns[-kept:] for m in t) == found.messages[2:]
    assert not found.overflow


def test_over_the_floor_the_rest_is_given_up() -> None:
    """T177: head and newest turn alone are too much."""
    found = fitted(user("q"), *turn(1, 10), *turn(2, 40_000))

    assert found.overflow
    assert 3 == len(found.messages)
    assert fitted(user("x" * 40_000)).overflow
    assert fitted(Message(role=Role.SYSTEM, content="x" * 40_000)).overflow


def test_later_messages_of_the_user_belong_to_the_turn_before_them() -> None:
    """T221, T222: the head ends with the first user message; examples in front of it are head too."""
    example = Message(role=Role.ASSISTANT, content="example")
    later = user("later" * 2000)

    found = fitted(example, user("q"), *turn(1, 10_000), later, *turn(2, 10_000))

    assert (example, user("q"), *turn(2, 10_000)) == found.messages


def test_a_result_without_its_call_passes_the_list_unmeasured() -> None:
    """It could only be made worse."""
    lost = Message(role=Role.TOOL, content="x" * 50_000, tool_call_id="unknown")

    found = fitted(user("q"), lost)

    assert ((user("q"), lost), 0, False) == (found.messages, found.estimate, found.overflow)


def test_tools_count() -> None:
    """Their names, descriptions and parameters, in every send that offers them."""
    found = fit((user("q"),), (LOOK,), context_length=8192, max_tokens=None, calibration=1.0)

    assert found.estimate > fitted(user("q")).estimate + len(LOOK.parameters) / 2.5


@pytest.mark.parametrize(
    ("estimate", "real", "expected"), [(100, 150, 1.5), (100, 100, 1.15), (0, 50, 1.15), (100, 0, 1.15), (10, -5, 1.15)]
)
def test_calibration_only_rises(estimate: int, real: int, expected: float) -> None:
    """The larger of the old one and what a real count says; a provider that does not count changes nothing."""
    assert expected == recalibrated(FIRST_CALIBRATION, estimate, real)


@given(st.lists(st.integers(0, 6000), max_size=8), st.integers(0, 6000))
def test_what_is_kept_is_head_and_a_tail_of_turns(sizes: list[int], first: int) -> None:
    """For any sizes: a suffix of whole turns, at least one, and within the budget unless the floor is not."""
    head = (user("x" * first),)
    turns = [turn(i, size) for i, size in enumerate(sizes)]
    found = fitted(*head, *(m for t in turns for m in t))

    kept = (len(found.messages) - 1) // 2
    assert (*head, *(m for t in turns[len(turns) - kept :] for m in t)) == found.messages
    assert kept >= min(1, len(turns))
    assert found.overflow == (found.estimate > 8192 - 1000 - 246)
    assert not found.overflow or kept <= 1
