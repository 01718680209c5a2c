"""Hypothesis strategies: any value of our structs, JSON from outside, facts, and whole runs with their journals."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from codec.answers import Answer, OutcomeWord
from codec.facts import Facts, FallbackFacts, SourceFacts
from codec.journal import ENTRY_VERSION, Entry
from codec.request import AgentRunRequest
from codec.suspended import STATE_VERSION, SuspendedRunState
from codec.transcript import Message
from codec.vocabulary import DeclaredClass, Enforcement, Phase, Role, SourceKind, TrustZone
from tests.support.builders import facts, fallback, provider, source

CLASSES = st.sampled_from(DeclaredClass)
ZONES = st.sampled_from(TrustZone)
CLEAN_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
ANY_TEXT = st.text(st.characters(), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | CLEAN_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(CLEAN_TEXT, inner, max_size=3),
    max_leaves=8,
)
"""Values that are clean already."""


@cache
def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Give a strategy for any value of a type of ours, bounds and patterns included."""
    return _of(inspect.type_info(kind))


def _of(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.StructType():
            fields = {field.name: _of(field.type) for field in info.fields}
            return st.builds(info.cls, **fields)
        case inspect.UnionType():
            return st.one_of([_of(part) for part in info.types])
        case inspect.VarTupleType():
            return st.lists(_of(info.item_type), max_size=2).map(tuple)
        case inspect.DictType():
            return st.dictionaries(_of(info.key_type), _of(info.value_type), max_size=2)
        case inspect.EnumType():
            return st.sampled_from(list(info.cls))
        case _:
            return _plain(info)


def _plain(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.IntType():
            low = info.ge if info.ge is not None else None if info.gt is None else info.gt + 1
            high = info.le if info.le is not None else None if info.lt is None else info.lt - 1
            return st.integers(low, high)
        case inspect.FloatType():
            return st.floats(info.ge, info.le, allow_nan=False, allow_infinity=False)
        case inspect.StrType():
            return CLEAN_TEXT if info.pattern is None else st.binary(min_size=16, max_size=16).map(bytes.hex)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.AnyType():
            return JSON
        case _:  # pragma: no cover - a new type in a struct wants a line here
            raise NotImplementedError(type(info).__name__)


def states() -> st.SearchStrategy[SuspendedRunState]:
    """Give any state that a reader must take: every field is arbitrary, but they fit the phase."""
    return values_of(SuspendedRunState).map(_fitting)


def _fitting(state: SuspendedRunState) -> SuspendedRunState:
    calls = {call.id: call for call in state.calls}
    waiting, known = state.phase is Phase.WAITING, tuple(calls)
    question = state.question
    if question is not None:
        question = msgspec.structs.replace(question, calls=known)
    changed = msgspec.structs.replace(
        state,
        version=STATE_VERSION,
        calls=tuple(calls.values()),
        question=question if waiting else None,
        blocked=state.blocked if waiting else None,
        reason=state.reason if state.phase is Phase.DONE else None,
        send=state.send if state.phase is Phase.MODEL else None,
        lead=min(state.lead, len(state.transcript)),
    )
    return changed if _complete(changed) else msgspec.structs.replace(changed, phase=Phase.TOOLS, blocked=None)


def _complete(state: SuspendedRunState) -> bool:
    needed = {Phase.WAITING: state.question, Phase.DONE: state.reason, Phase.MODEL: state.send}
    return needed.get(state.phase, True) is not None


def entries() -> st.SearchStrategy[Entry]:
    """Give any entry."""
    return values_of(Entry).map(lambda entry: msgspec.structs.replace(entry, version=ENTRY_VERSION))


def answers() -> st.SearchStrategy[Answer]:
    """Give any answer that is exactly one."""
    return st.tuples(values_of(Answer), st.sampled_from(("verdicts", "data", "outcome"))).map(_one_answer)


def _one_answer(given: tuple[Answer, str]) -> Answer:
    answer, kind = given
    word = answer.outcome or OutcomeWord(call="c")
    return Answer(
        question=answer.question,
        decider=answer.decider,
        via=answer.via,
        verdicts=(answer.verdicts or {}) if kind == "verdicts" else None,
        data=(answer.data or "") if kind == "data" else None,
        outcome=(word if word.happened is None else msgspec.structs.replace(word, run=False))
        if kind == "outcome"
        else None,
    )


def requests() -> st.SearchStrategy[AgentRunRequest]:
    """Give requests with uids and plain messages; some hold a name that is empty or anything else that is refused."""
    return values_of(AgentRunRequest).map(_plain_request)


def _plain_request(request: AgentRunRequest) -> AgentRunRequest:
    messages = tuple(Message(role=Role.USER, content=m.content) for m in request.messages)
    augmentation = request.augmentation
    if augmentation is not None:
        snippets, skills = (
            tuple(len(str(uid)) + 1 for uid in uids)
            for uids in (augmentation.forced_snippet_uids, augmentation.forced_skill_uids)
        )
        augmentation = msgspec.structs.replace(augmentation, forced_snippet_uids=snippets, forced_skill_uids=skills)
    return msgspec.structs.replace(request, configuration=1, messages=messages, augmentation=augmentation)


@st.composite
def sources(draw: st.DrawFn) -> SourceFacts:
    """Give one snippet or skill."""
    return source(
        draw(st.integers(1, 6)),
        draw(st.none() | CLASSES),
        kind=draw(st.sampled_from((SourceKind.SNIPPET, SourceKind.SKILL))),
        active=draw(st.booleans()),
        text=draw(st.sampled_from(("one", "two"))),
    )


@st.composite
def policies(draw: st.DrawFn) -> Facts:
    """Give facts with any classes, zones, chain, links and switches; readable and with a configuration."""
    found = {(s.kind, s.uid): s for s in draw(st.lists(sources(), max_size=6))}
    links = st.lists(st.integers(1, 6), max_size=3, unique=True).map(tuple)
    chain = draw(st.lists(st.sampled_from((2, 3, None)), max_size=2))
    prompted = draw(st.booleans())
    return facts(
        providers=tuple(provider(uid, draw(ZONES), f"p{uid}") for uid in (1, 2)),
        sources=tuple(found.values()),
        enforcement=draw(st.sampled_from(Enforcement)),
        fallbacks=tuple(_hop(i, uid) for i, uid in enumerate(chain)),
        prompt_class=draw(st.none() | CLASSES),
        prompt_hash="hash-of-prompt" if prompted else None,
        snippets=draw(links),
        skills=draw(links),
    )


def _hop(index: int, uid: int | None) -> FallbackFacts:
    return FallbackFacts(identifier=f"f{index}") if uid is None else fallback(f"f{index}", uid)
