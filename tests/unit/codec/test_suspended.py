"""The stored state: exactly itself, or corruption at a path, or something newer; and the first version, leniently."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec import CodecError, Message, SchemaTooNewError, SuspendedRunState
from codec.suspended import STATE_VERSION
from codec.version0 import lenient_uids
from codec.vocabulary import QuestionKind, Role
from tests.support.golden import Story, documents
from tests.support.strategies import JSON, states

DOCUMENTS = {name: data for name, data in documents().items() if name.startswith("state_")}
INPUT = DOCUMENTS["state_input.json"]
WHOLE = SuspendedRunState.decode(INPUT)
PARTS = ("", "counters", "limits", "question", "question.input", "calls.0", "calls.1", "carried.0", "dropped.0")
LISTS = ("forced_snippet_uids", "forced_skill_uids", "transcript", "carried", "dropped", "calls", "noted")
UIDS = ["12", 0, -1, 1.0, True, None, [1], {}, 2**63, 2**70]


def fields(data: bytes = INPUT) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data)
    return found


def part(whole: dict[str, Any], path: str) -> Any:
    """Find an inner part by a dotted path."""
    found: Any = whole
    for name in path.split(".") if path else ():
        found = found[int(name)] if name.isdigit() else found[name]
    return found


def decode(whole: object) -> SuspendedRunState:
    return SuspendedRunState.decode(json.dumps(whole).encode())


def refused(whole: object) -> CodecError:
    with pytest.raises(CodecError) as caught:
        decode(whole)
    return caught.value


@given(states())
def test_any_state_survives(state: SuspendedRunState) -> None:
    """T89, T116, T148: decode(encode(s)) == s, and the same state gives the same bytes."""
    data = state.encode()

    assert state == SuspendedRunState.decode(data)
    assert data == SuspendedRunState.decode(data).encode()
    assert STATE_VERSION == json.loads(data)["version"]


def test_forced_uids_keep_their_order_and_stay_integers() -> None:
    """T57, T58, T71, T76: as the run was given them, the one that is gone too."""
    for data in DOCUMENTS.values():
        assert ([41, 7], [77]) == (fields(data)["forced_snippet_uids"], fields(data)["forced_skill_uids"])
    assert [("snippet", 7, "gone")] == [(d["kind"], d["uid"], d["reason"]) for d in fields()["dropped"]]


@pytest.mark.parametrize("path", PARTS)
def test_every_field_must_be_there(path: str) -> None:
    """A field that is missing is corruption at its path, never a default."""
    for name in part(fields(), path):
        if (path, name) == ("", "version"):
            continue
        whole = fields()
        del part(whole, path)[name]
        error = refused(whole)
        assert error.problem == "a field is missing"
        assert error.path.startswith("$" + "".join(f"[{p}]" if p.isdigit() else f".{p}" for p in path.split(".") if p))


@pytest.mark.parametrize("path", PARTS)
def test_no_field_may_be_there_that_nobody_knows(path: str) -> None:
    """An unknown field is corruption: a newer writer would have said so in the version."""
    whole = fields()
    part(whole, path)["MARKER"] = 1

    assert "an unknown field" == refused(whole).problem


@pytest.mark.parametrize("name", ["forced_snippet_uids", "forced_skill_uids"])
@pytest.mark.parametrize("uid", UIDS)
def test_a_uid_that_is_no_positive_integer_is_corruption(name: str, uid: Any) -> None:
    """In the forced lists."""
    assert f"$.{name}[1]" == refused({**fields(), name: [41, uid]}).path


@pytest.mark.parametrize("name", ["carried", "dropped"])
@pytest.mark.parametrize("uid", UIDS)
def test_a_uid_of_a_source_is_as_strict(name: str, uid: Any) -> None:
    """In the carried and the dropped sources."""
    whole = fields()
    whole[name][0]["uid"] = uid

    assert f"$.{name}[0].uid" == refused(whole).path


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("value", [None, "x", {}, 0, True])
def test_a_broken_list_is_corruption_and_never_none(name: str, value: Any) -> None:
    """It must not read as an empty one."""
    assert f"$.{name}" == refused({**fields(), name: value}).path


@pytest.mark.parametrize("value", ["x", "", {}, 0, True, [1], [None], ["look", ["write"]]])
def test_a_broken_allow_list_is_never_no_restriction(value: Any) -> None:
    """Only a true null means that every enabled tool is allowed."""
    assert refused({**fields(), "allowed_tool_names": value}).path.startswith("$.allowed_tool_names")
    assert decode({**fields(), "allowed_tool_names": None}).allowed_tool_names is None
    assert () == decode({**fields(), "allowed_tool_names": []}).allowed_tool_names


@pytest.mark.parametrize("value", [-1, "3", 1.0, True, None])
def test_counters_and_limits_are_whole_numbers(value: Any) -> None:
    """T122 is for the first version only."""
    for name in ("counters", "limits"):
        for counter in fields()[name]:
            whole = fields()
            whole[name][counter] = value
            assert f"$.{name}.{counter}" == refused(whole).path


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"question": None}, "$.question"),
        ({"phase": "tools"}, "$.question"),
        ({"phase": "done"}, "$.question"),
        ({"phase": "asleep"}, "$.phase"),
        ({"reason": "completed"}, "$.reason"),
        ({"reason": "bored"}, "$.reason"),
        ({"send": {"id": "s", "estimate": 0}}, "$.send"),
        ({"phase": "tools", "question": None, "blocked": {"reason": "owner", "decision": None}}, "$.blocked"),
        ({"lead": 99}, "$.lead"),
        ({"seed": "0" * 31}, "$.seed"),
        ({"seed": "0" * 32 + "\n"}, "$.seed"),
        ({"seed": "G" * 32}, "$.seed"),
        ({"calibration": "1"}, "$.calibration"),
        ({"owner": {"kind": "user", "name": "x", "admin": 1}}, "$.owner.admin"),
    ],
)
def test_what_does_not_fit_together_is_corruption(changes: dict[str, Any], path: str) -> None:
    """Phase, question, reason, open send, lead and seed."""
    assert path == refused({**fields(), **changes}).path


def test_calls_and_the_question_about_them_fit() -> None:
    """T150: no repeated id, no question about a call that is not there."""
    whole = fields()
    whole["calls"][1]["id"] = whole["calls"][0]["id"]
    assert "$.calls" == refused(whole).path

    whole = fields()
    whole["question"]["calls"] = ["other"]
    assert "$.question.calls" == refused(whole).path


def test_a_newer_state_is_left_in_place() -> None:
    """Whatever else it holds; a version that is none is corruption."""
    newer = {"version": STATE_VERSION + 1, "news": [1]}

    with pytest.raises(SchemaTooNewError) as caught:
        decode(newer)
    assert STATE_VERSION + 1 == caught.value.version
    for version in ("1", 1.0, True, None, -1, [1]):
        assert "$.version" == refused({**fields(), "version": version}).path


def test_a_state_larger_than_one_text_is_read_back() -> None:
    """Three long texts, and one that doubles when it is written."""
    long = tuple(Message(role=Role.USER, content=text * 3_000_000) for text in ("x", '"', "y"))
    state = msgspec.structs.replace(WHOLE, transcript=long, lead=0)

    assert state == SuspendedRunState.decode(state.encode())


@given(st.binary(max_size=60), st.integers(0, 3000), st.sampled_from(sorted(DOCUMENTS)))
def test_any_bytes_give_a_state_or_a_codec_error(noise: bytes, place: int, name: str) -> None:
    """Also bytes that were a state once, cut or written over."""
    whole = DOCUMENTS[name]
    for data in (
        noise,
        whole[:place],
        whole[:place] + noise + whole[place:],
        whole[:place] + noise + whole[place + 9 :],
    ):
        try:
            assert isinstance(SuspendedRunState.decode(data), SuspendedRunState)
        except CodecError as error:
            assert error.document == "state"


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(inner):
        yield value, key
        yield from _places(item)


@given(st.data())
def test_no_error_holds_a_word_of_the_document(data: st.DataObject) -> None:
    """A marker as a value, as a key and around what looks like a path of an error."""
    whole = fields()
    places = list(_places(whole))
    holder, key = places[data.draw(st.integers(0, len(places) - 1))]
    marker = data.draw(st.sampled_from(("MARKER", "x` - at `$.MARKER", "'MARKER' - at `$.phase`", "MARKER`")))
    if data.draw(st.booleans()):
        holder[key] = data.draw(st.sampled_from((marker, [marker], {marker: marker}, {marker: data.draw(JSON)})))
    elif isinstance(holder, dict):
        holder[marker] = holder.pop(key)
    else:
        holder.insert(0, {marker: marker})
    try:
        decode(whole)
    except CodecError as error:
        assert "MARKER" not in f"{error} {error!r} {error.path} {error.problem} {error.__context__!r}"


def _old(**changes: Any) -> dict[str, Any]:
    """Give the fields of a state from before forced lists, carried sources, input keys and previews."""
    whole = fields(DOCUMENTS["state_approval.json"])
    for name in ("version", "forced_snippet_uids", "forced_skill_uids", "carried", "dropped"):
        del whole[name]
    for call in whole["calls"]:
        del call["preview"], call["supplied"]
    del whole["question"]["input"]
    return {**whole, **changes}


def test_the_first_version_has_no_lists_and_no_previews() -> None:
    """T73, T117, T121: none of what it lacks is invented."""
    state = decode(_old())

    assert ((), (), (), ()) == (state.forced_snippet_uids, state.forced_skill_uids, state.carried, state.dropped)
    assert state.question is not None and state.question.input is None
    assert QuestionKind.APPROVAL is state.question.kind
    assert {None} == {call.preview for call in state.calls}
    assert state == decode(_old(version=0))


def test_the_first_version_reads_uids_leniently() -> None:
    """T74, T75: positive integers, and digits in text."""
    given_uids = [41, 0, -3, "nine", "12", None, ["x"], True, "²", "-1", "9" * 30, 2**63]

    assert (41, 12) == decode(_old(forced_snippet_uids=given_uids)).forced_snippet_uids
    for broken in ("41", 41, {"41": 1}, None):
        assert () == decode(_old(forced_skill_uids=broken)).forced_skill_uids
        assert [] == lenient_uids(broken)


def test_the_first_version_reads_counters_and_the_allow_list_leniently() -> None:
    """T122: digits in text are numbers, anything else is 0; no list is no restriction."""
    counters = {"rounds": "3", "input_tokens": "x", "output_tokens": -1, "turns": 2, "extra": 5}
    state = decode(_old(counters=counters, allowed_tool_names="look"))

    assert (3, 0, 0, 2) == (
        state.counters.rounds,
        state.counters.input_tokens,
        state.counters.output_tokens,
        state.counters.turns,
    )
    assert state.allowed_tool_names is None
    assert ("look",) == decode(_old(allowed_tool_names=["look", 7, None])).allowed_tool_names


@pytest.mark.parametrize("keys", [{"tool": 42, "schema": "x"}, {"tool": "ask"}, "x", None])
def test_the_first_version_reads_broken_input_keys_as_none(keys: Any) -> None:
    """T118; but an input pause whose tool is known by the state's own facts can still be answered."""
    whole = _old()
    whole["question"]["input"] = keys
    question = decode(whole).question
    assert question is not None and question.input is None

    asked = {**fields(), "version": 0}
    asked["question"]["input"] = keys
    known = decode(asked).question
    assert known is not None and known.input == WHOLE.question.input  # type: ignore[union-attr]


@given(st.dictionaries(st.sampled_from(sorted(_old())), JSON, max_size=4))
def test_anything_of_the_first_version_gives_a_state_or_a_codec_error(changes: dict[str, Any]) -> None:
    """Leniency is no hole: what is still malformed after it is corruption."""
    try:
        assert STATE_VERSION == decode(_old(**changes)).version
    except CodecError as error:
        assert error.document == "state"


def test_a_state_says_nothing_of_its_seed_or_texts_when_it_is_refused() -> None:
    """One more look at the message of a real fault."""
    whole = json.loads(Story("write").state.encode())
    whole["transcript"][0]["content"] = 7

    assert "state $.transcript[0].content: not of its type" == str(refused(whole))
