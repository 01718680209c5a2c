"""Documents of every released version stay readable, and today's stay what they are, byte for byte.

`UPDATE_GOLDEN=1` writes those of the current version anew; that is right only before the version is released.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from codec import AgentRunRequestCodec, SuspendedRunState
from codec.answers import Answer
from codec.events import CallVerdict, DecisionGiven, InputGiven, RunResumed
from codec.facts import Facts
from codec.journal import Entry
from codec.suspended import STATE_VERSION
from codec.vocabulary import BlockedReason, DeclaredClass, Phase, QuestionKind, ResumeCause, TrustZone
from tests.support.builders import DECIDER, facts, nonce, source
from tests.support.golden import documents
from worker.core.machine import step

FOLDER = Path(__file__).parents[2] / "golden"
CURRENT = FOLDER / str(STATE_VERSION)
UPDATE = "UPDATE_GOLDEN"
DOCUMENTS = documents()
OLD = sorted((FOLDER / "0").glob("*.json"))


def read(name: str, data: bytes) -> object:
    """Read a document by the kind that its name begins with."""
    kind = name.split("_", 1)[0].removesuffix(".json")
    readers: dict[str, Any] = {
        "request": AgentRunRequestCodec.rehydrate,
        "state": SuspendedRunState.decode,
        "entry": Entry.decode,
        "answer": Answer.decode,
    }
    return readers[kind](data)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_todays_documents_are_those_that_were_released(name: str) -> None:
    """The same story gives the same bytes."""
    path = CURRENT / name
    if os.environ.get(UPDATE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(DOCUMENTS[name])

    assert path.read_bytes() == DOCUMENTS[name]


def test_there_is_no_other_golden_document() -> None:
    """Nothing lies there that nobody compares."""
    assert sorted(DOCUMENTS) == sorted(path.name for path in CURRENT.iterdir())


@pytest.mark.parametrize("name", DOCUMENTS)
def test_todays_documents_are_read_and_written_alike(name: str) -> None:
    """Reading and writing gives the same bytes again."""
    value = read(name, DOCUMENTS[name])
    again = AgentRunRequestCodec.dehydrate(value) if name == "request.json" else value.encode()  # type: ignore[arg-type, attr-defined]

    assert DOCUMENTS[name] == again


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name)
def test_the_first_documents_resume(path: Path) -> None:
    """They carry nothing, so the live configuration's own sources decide, and they are never refused for their age."""
    state = SuspendedRunState.decode(path.read_bytes())
    lost = source(41, DeclaredClass.SECRET_ADJACENT)

    assert ((), (), ()) == (state.forced_snippet_uids, state.forced_skill_uids, state.carried)
    assert STATE_VERSION == json.loads(state.encode())["version"]
    assert resumed(state, facts(zone=TrustZone.EXTERNAL_GLOBAL, sources=(lost,))).blocked is None
    own = resumed(state, facts(zone=TrustZone.EXTERNAL_GLOBAL, sources=(lost,), snippets=(41,)))
    assert own.blocked is not None
    assert BlockedReason.CONTEXT is own.blocked.reason


def test_there_are_first_documents_of_both_kinds() -> None:
    """One waits for an approval, one for input; both can be answered."""
    approval, input_ = (SuspendedRunState.decode(path.read_bytes()) for path in OLD)
    assert approval.question is not None and input_.question is not None
    assert (QuestionKind.APPROVAL, QuestionKind.INPUT) == (approval.question.kind, input_.question.kind)
    stamp: dict[str, Any] = {"nonce": nonce(60), "elapsed_ms": 60, "policy": 2, "decider": DECIDER}
    verdicts = dict.fromkeys(approval.question.calls, CallVerdict(approve=True))

    decided = step(resumed(approval), DecisionGiven(**stamp, question=approval.question.id, verdicts=verdicts))
    given = step(resumed(input_), InputGiven(**stamp, question=input_.question.id, data='{"answer":"a"}'))

    assert (Phase.TOOLS, Phase.TOOLS) == (decided.state.phase, given.state.phase)


def resumed(state: SuspendedRunState, known: Facts | None = None) -> SuspendedRunState:
    """Begin a segment under other facts."""
    known = facts() if known is None else known
    return step(
        state, RunResumed(nonce=nonce(50), elapsed_ms=50, policy=2, cause=ResumeCause.ANSWER, facts=known)
    ).state
