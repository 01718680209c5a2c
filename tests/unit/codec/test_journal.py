"""Entries and answers: they survive, and they are refused as strictly as states."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.answers import ANSWER_VERSION, Answer
from codec.commands import Finish, Preview, Suspend
from codec.errors import CodecError, SchemaTooNewError
from codec.events import CancelRequested, StateCorrupted
from codec.ids import parse_run_uuid
from codec.journal import ENTRY_VERSION, Entry, reference, unsealed_event
from codec.vocabulary import BlockedReason, QuestionKind, TerminationReason
from tests.support.golden import documents
from tests.support.strategies import answers, entries

DOCUMENTS = documents()
READERS: dict[str, Any] = {"entry_outcome_toolfailed.json": Entry.decode, "answer_decision.json": Answer.decode}


def fields(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DOCUMENTS[name])
    return found


def stored(found: object) -> bytes:
    return json.dumps(found).encode()


@given(entries())
def test_any_entry_survives(entry: Entry) -> None:
    """decode(encode(e)) == e, with a version."""
    assert entry == Entry.decode(entry.encode())
    assert ENTRY_VERSION == json.loads(entry.encode())["version"]


@given(answers())
def test_any_answer_survives(answer: Answer) -> None:
    """decode(encode(a)) == a, with a version."""
    assert answer == Answer.decode(answer.encode())
    assert ANSWER_VERSION == json.loads(answer.encode())["version"]


@pytest.mark.parametrize("name", READERS)
def test_a_newer_document_is_left_in_place_and_none_was_never_released(name: str) -> None:
    """Versions of entries and answers."""
    with pytest.raises(SchemaTooNewError):
        READERS[name](stored({**fields(name), "version": 2}))
    for version in (0, None, "1", True, 1.0):
        with pytest.raises(CodecError, match=r"\$.version"):
            READERS[name](stored({**fields(name), "version": version}))


@pytest.mark.parametrize("name", READERS)
def test_a_malformed_document_is_refused(name: str) -> None:
    """Not an object, a field too many, a field of another type."""
    for data in (b"", b"[]", b"7", b"\xff", DOCUMENTS[name][:-2]):
        with pytest.raises(CodecError):
            READERS[name](data)
    for field in fields(name):
        for value in ([[1]], 1.5, True):
            with pytest.raises(CodecError):
                READERS[name](stored({**fields(name), field: value}))
    with pytest.raises(CodecError, match="unknown field"):
        READERS[name](stored({**fields(name), "MARKER": 1}))


def test_an_unknown_event_is_refused_without_its_word() -> None:
    """The tag is one of ours or corruption."""
    whole = fields("entry_outcome_toolfailed.json")
    whole["event"]["type"] = "MARKER"

    with pytest.raises(CodecError) as caught:
        Entry.decode(stored(whole))

    assert "entry $.event.type: not a known kind" == str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"verdicts": {}, "data": "{}"},
        {"data": "{}", "outcome": {"call": "c"}},
        {"verdicts": {}, "outcome": {"call": "c"}},
        {"outcome": {"call": "c", "run": True, "happened": "it did"}},
    ],
)
def test_an_answer_is_exactly_one(changes: dict[str, Any]) -> None:
    """Neither none nor two, and an outcome is one outcome."""
    whole = {**fields("answer_decision.json"), "verdicts": None, **changes}

    with pytest.raises(CodecError, match="exactly one"):
        Answer.decode(stored(whole))


@given(st.binary(max_size=60), st.integers(0, 800), st.sampled_from(sorted(READERS)))
def test_any_bytes_give_a_document_or_a_codec_error(noise: bytes, place: int, name: str) -> None:
    """Cut, written over, or never one."""
    whole = DOCUMENTS[name]
    for data in (noise, whole[:place] + noise + whole[place + len(noise) :]):
        try:
            READERS[name](data)
        except CodecError as error:
            assert error.document in ("entry", "answer")


def test_a_command_is_kept_as_a_reference_without_content() -> None:
    """The commands that stand on no permit; sends and calls are in the golden entries."""
    waits = Suspend(kind=QuestionKind.INPUT, question="q", number=2)

    assert "finish completed" == _told(Finish(reason=TerminationReason.COMPLETED))
    assert "preview c" == _told(Preview(call="c", tool="t"))
    assert "suspend q input" == _told(waits)
    assert "suspend q context" == _told(
        Suspend(kind=QuestionKind.INPUT, question="q", number=2, blocked=BlockedReason.CONTEXT)
    )
    assert 3 == reference(Suspend(parked=3)).length


def _told(command: Any) -> str:
    kept = reference(command)
    return " ".join(str(word) for word in (kept.kind, kept.id, kept.word) if word is not None)


def test_only_a_cancel_and_a_corruption_stand_unsealed() -> None:
    """They are rebuilt from the columns; anything else without a payload is corruption."""
    assert isinstance(unsealed_event("cancel_requested", "dora", 5, 2), CancelRequested)
    assert isinstance(unsealed_event("state_corrupted", "", 5, 2), StateCorrupted)
    for kind in ("model_replied", "decision_given", "", "cancel"):
        with pytest.raises(CodecError, match="missing"):
            unsealed_event(kind, "dora", 5, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "11111111-1111-4111-8111-11111111111",
        "11111111111141118111111111111111",
        "11111111-1111-4111-8111-11111111111A",
        "{11111111-1111-4111-8111-111111111111}",
        "urn:uuid:11111111-1111-4111-8111-111111111111",
        " 11111111-1111-4111-8111-111111111111",
        "11111111-1111-4111-8111-111111111111\n",
        None,
        7,
        b"11111111-1111-4111-8111-111111111111",
    ],
)
def test_a_run_is_named_in_one_spelling(text: Any) -> None:
    """Anything but our own spelling is no uuid, and is not repeated."""
    with pytest.raises(CodecError, match="not a uuid"):
        parse_run_uuid(text)
    name = "11111111-1111-4111-8111-11111111111a"
    assert name == parse_run_uuid(name)
