"""Queued requests: what survives, what is normalised, what is refused and where."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec import (
    ANONYMOUS,
    Actor,
    AgentRunRequest,
    AgentRunRequestCodec,
    Caller,
    CodecError,
    Message,
    ModelOptions,
    RunAugmentation,
    SchemaTooNewError,
    ToolCall,
)
from codec.request_codec import REQUEST_VERSION, clean_request
from codec.vocabulary import ActorKind, Role
from tests.support.strategies import ANY_TEXT, requests

dehydrate, rehydrate = AgentRunRequestCodec.dehydrate, AgentRunRequestCodec.rehydrate
DORA = Actor(kind=ActorKind.USER, name="dora", uid=7, groups=("a",), grants=("runs:start",))


def full(**changes: Any) -> AgentRunRequest:
    """Give a request that uses everything."""
    defaults: dict[str, Any] = {
        "configuration": 3,
        "messages": (
            Message(role=Role.SYSTEM, content="be kind"),
            Message(role=Role.USER, content="look"),
            Message(role=Role.ASSISTANT, tool_calls=(ToolCall(id="c1", name="look", arguments='{"n":1}'),)),
            Message(role=Role.TOOL, content="seen", tool_call_id="c1"),
            Message(role=Role.USER, content="and now?"),
        ),
        "allowed_tool_names": ("look", "write"),
        "options": ModelOptions(temperature=0.3, max_tokens=512, think=False, stop=("x",), response_schema={"a": [1]}),
        "max_iterations": 5,
        "augmentation": RunAugmentation(forced_snippet_uids=(9, 3), forced_skill_uids=(77,), dry_run=False),
        "actor": DORA,
        "planned_cost": 0.25,
        "idempotency_key": "once",
        "caller": Caller(extension="shop", operation="refund"),
        "tags": {"team": "blue"},
    }
    return AgentRunRequest(**{**defaults, **changes})


def fields(**changes: Any) -> dict[str, Any]:
    """Give the stored fields of a full request; a dotted name changes an inner one."""
    found: dict[str, Any] = json.loads(dehydrate(full()))
    for name, value in changes.items():
        *outer, last = name.split("__")
        place = found
        for part in outer:
            place = place[part]
        place[last] = value
    return found


def stored(found: object) -> bytes:
    return json.dumps(found).encode()


def test_everything_survives() -> None:
    """T89, T90, T104, T113: messages, allow-list, options, limits, actor, and the forced lists in their order."""
    request = full()

    found = rehydrate(dehydrate(request))

    assert request == found
    assert found.augmentation is not None
    assert (9, 3) == found.augmentation.forced_snippet_uids


def test_cost_key_and_caller_stand_beside_the_options() -> None:
    """T90, T91: never inside, where they could reach a provider."""
    found = fields()

    assert (0.25, "once", {"extension": "shop", "operation": "refund"}) == (
        found["planned_cost"],
        found["idempotency_key"],
        found["caller"],
    )
    assert {"temperature", "max_tokens", "think", "stop", "response_schema"} == set(found["options"])


def test_absent_parts_stay_absent() -> None:
    """T92, T166: no caller, no augmentation and no allow-list come back as none, an empty allow-list as empty."""
    plain = AgentRunRequest(configuration=1, messages=())

    found = rehydrate(dehydrate(plain))

    assert (None, None, None) == (found.caller, found.augmentation, found.allowed_tool_names)
    assert () == rehydrate(dehydrate(full(allowed_tool_names=[]))).allowed_tool_names
    assert RunAugmentation() == rehydrate(dehydrate(full(augmentation=RunAugmentation()))).augmentation


@pytest.mark.parametrize("actor", [ANONYMOUS, Actor(kind=ActorKind.SERVICE, name="bot", uid=4, scopes=("runs:start",))])
def test_any_actor_survives(actor: Actor) -> None:
    """T113."""
    assert actor == rehydrate(dehydrate(full(actor=actor))).actor


@pytest.mark.parametrize("data", [b"", b"not json", b"5", b'"x"', b"null", b"[]", b"{}", b"\xff", b'{"version":true}'])
def test_what_is_no_request_is_refused(data: bytes) -> None:
    """T96."""
    with pytest.raises(CodecError):
        rehydrate(data)


def test_a_newer_request_is_left_for_a_newer_worker() -> None:
    """And one of a version that never was is not guessed."""
    with pytest.raises(SchemaTooNewError):
        rehydrate(stored({**fields(), "version": REQUEST_VERSION + 1, "news": 1}))
    for version in (0, -1, 1.0, "1", None, True):
        with pytest.raises(CodecError, match=r"\$.version"):
            rehydrate(stored({**fields(), "version": version}))


@pytest.mark.parametrize(
    ("name", "value", "path"),
    [
        ("max_iterations", "5", "$.max_iterations"),
        ("max_iterations", 5.0, "$.max_iterations"),
        ("max_iterations", True, "$.max_iterations"),
        ("max_iterations", 0, "$.max_iterations"),
        ("max_iterations", 201, "$.max_iterations"),
        ("augmentation__dry_run", 1, "$.augmentation.dry_run"),
        ("augmentation__dry_run", "true", "$.augmentation.dry_run"),
        ("augmentation", [], "$.augmentation"),
        ("augmentation__forced_skill_uids", None, "$.augmentation.forced_skill_uids"),
        ("messages", "x", "$.messages"),
        ("messages", [{"role": "user"}, 7], "$.messages[1]"),
        ("messages", [{"role": "root"}], "$.messages[0].role"),
        ("messages", [{"role": "user", "name": "x"}], "$.messages[0]"),
        ("allowed_tool_names", "look", "$.allowed_tool_names"),
        ("allowed_tool_names", {}, "$.allowed_tool_names"),
        ("allowed_tool_names", ["look", 7], "$.allowed_tool_names[1]"),
        ("allowed_tool_names", [""], "$.allowed_tool_names[0]"),
        ("options", None, "$.options"),
        ("options", [], "$.options"),
        ("options__temperature", "0.3", "$.options.temperature"),
        ("options__temperature", 2.5, "$.options.temperature"),
        ("options__model", "other", "$.options"),
        ("options__response_schema", [], "$.options.response_schema"),
        ("planned_cost", "0.25", "$.planned_cost"),
        ("idempotency_key", "", "$.idempotency_key"),
        ("idempotency_key", 7, "$.idempotency_key"),
        ("caller__extension", "", "$.caller.extension"),
        ("caller__extension", None, "$.caller.extension"),
        ("configuration", 0, "$.configuration"),
        ("configuration", 2**63, "$.configuration"),
        ("configuration", None, "$.configuration"),
        ("actor", None, "$.actor"),
        ("actor", {}, "$.actor"),
        ("actor__uid", "7", "$.actor.uid"),
        ("actor__admin", 1, "$.actor.admin"),
        ("actor__groups", ["a", 2], "$.actor.groups[1]"),
        ("actor__kind", "root", "$.actor.kind"),
        ("tags", {"a": 1}, "$.tags[...]"),
    ],
)
def test_a_malformed_field_is_corruption_at_its_path(name: str, value: Any, path: str) -> None:
    """T98 to T102 and T112, strictly: nothing malformed becomes an absence or a default."""
    with pytest.raises(CodecError) as caught:
        rehydrate(stored(fields(**{name: value})))

    assert path == caught.value.path


@pytest.mark.parametrize("kind", ["forced_snippet_uids", "forced_skill_uids"])
@pytest.mark.parametrize("uid", ["12", 0, -1, 1.0, True, None, [1], 2**63])
def test_a_forced_uid_is_a_positive_integer_or_corruption(kind: str, uid: Any) -> None:
    """An identifier in a stored list could only be a broken uid."""
    with pytest.raises(CodecError) as caught:
        rehydrate(stored(fields(**{f"augmentation__{kind}": [41, uid]})))

    assert f"$.augmentation.{kind}[1]" == caught.value.path


def test_every_field_must_be_there_and_nothing_else() -> None:
    """Missing and unknown fields of the request and of its augmentation."""
    whole = fields()
    for name in [name for name in whole if name != "version"]:
        with pytest.raises(CodecError, match="missing"):
            rehydrate(stored({k: v for k, v in whole.items() if k != name}))
    for name in whole["augmentation"]:
        left = {k: v for k, v in whole["augmentation"].items() if k != name}
        with pytest.raises(CodecError, match="missing"):
            rehydrate(stored({**whole, "augmentation": left}))
    with pytest.raises(CodecError, match="unknown field"):
        rehydrate(stored({**whole, "target": "elsewhere"}))


def test_an_identifier_must_be_resolved_before_it_is_stored() -> None:
    """Forced sources travel as uids."""
    with pytest.raises(CodecError, match=r"forced_snippet_uids\[0\]"):
        dehydrate(full(augmentation=RunAugmentation(forced_snippet_uids=("tone",))))


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"planned_cost": float("nan")}, "$.planned_cost"),
        ({"options": ModelOptions(temperature=float("nan"))}, "$.options.temperature"),
        ({"options": ModelOptions(temperature=3.0)}, "$.options.temperature"),
        ({"options": ModelOptions(max_tokens=0)}, "$.options.max_tokens"),
        ({"options": ModelOptions(response_schema={"a": float("inf")})}, "$.options.response_schema.*"),
        ({"options": ModelOptions(response_schema={"a": object()})}, "$.options.response_schema.*"),
        ({"max_iterations": 0}, "$.max_iterations"),
        ({"configuration": -1}, "$.configuration"),
        ({"augmentation": RunAugmentation(forced_skill_uids=(0,))}, "$.augmentation.forced_skill_uids[0]"),
        ({"augmentation": RunAugmentation(forced_skill_uids=(True,))}, "$.augmentation.forced_skill_uids[0]"),
        ({"idempotency_key": "x" * 257}, "$.idempotency_key"),
        ({"messages": [{"role": "user", "content": "x" * (4 * 1024 * 1024 + 1)}]}, "$.messages[0].content"),
    ],
)
def test_what_code_hands_over_has_the_same_bounds(changes: dict[str, Any], path: str) -> None:
    """T114: a constructor checks nothing, so writing does."""
    with pytest.raises(CodecError) as caught:
        dehydrate(full(**changes))

    assert path == caught.value.path


@pytest.mark.parametrize(
    ("messages", "path"),
    [
        ([{"role": "user", "tool_calls": [{"id": "a", "name": "n", "arguments": ""}]}], "$.messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"id": "a", "name": "n", "arguments": ""}]}], "$.messages"),
        ([{"role": "tool"}], "$.messages[0].tool_call_id"),
        ([{"role": "user", "tool_call_id": "a"}], "$.messages[0].tool_call_id"),
        ([{"role": "tool", "tool_call_id": "a"}], "$.messages[0].tool_call_id"),
        ([{"role": "assistant", "signed": [{"served_by": "m", "data": "d"}]}], "$.messages[0].signed"),
        (
            [{"role": "assistant", "tool_calls": [{"id": "a", "name": "n", "arguments": ""}] * 2}],
            "$.messages[0].tool_calls",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "a", "name": "n", "arguments": ""}]}, {"role": "user"}],
            "$.messages[1]",
        ),
        ([{"role": "user", "content": 7}], "$.messages[0].content"),
    ],
)
def test_messages_fit_their_roles_and_hold_no_open_call(messages: list[dict[str, Any]], path: str) -> None:
    """Each call has one result right after it; parts stand only where they belong."""
    with pytest.raises(CodecError) as caught:
        dehydrate(AgentRunRequest(configuration=1, messages=messages))  # type: ignore[arg-type]

    assert path == caught.value.path


def test_every_text_is_normalised() -> None:
    """T114: NUL and lone surrogates everywhere; a call and its result keep fitting together."""
    bad, good = "a\x00\ud800", "a\ufffd\ufffd"
    messages = (
        Message(role=Role.ASSISTANT, content=bad, tool_calls=(ToolCall(id=bad, name=bad, arguments=bad),)),
        Message(role=Role.TOOL, content=bad, tool_call_id=bad),
    )
    request = full(
        messages=messages,
        allowed_tool_names=(bad,),
        options=ModelOptions(stop=(bad,), response_schema={bad: bad}),
        augmentation=RunAugmentation(system_prompt_override=bad),
        actor=Actor(kind=ActorKind.USER, name=bad, groups=(bad,), grants=(bad,), scopes=(bad,)),
        idempotency_key=bad,
        caller=Caller(extension=bad, operation=bad),
        tags={bad: bad},
    )

    written = dehydrate(request).decode()

    assert "\x00" not in written and "\\u0000" not in written
    assert 20 == written.count(good)


def test_large_and_deep_requests_are_read_back() -> None:
    """What can be written can be read: several long texts, a schema of the deepest kind, integers of any size."""
    schema: dict[str, Any] = {"maximum": 2**256 - 1}
    for _ in range(63):
        schema = {"properties": schema}
    messages = tuple(Message(role=Role.USER, content="x" * 3_000_000) for _ in range(3))
    request = full(messages=messages, options=ModelOptions(response_schema=schema))

    assert request == rehydrate(dehydrate(request))


@given(requests())
def test_reading_what_was_written_gives_the_clean_request(request: AgentRunRequest) -> None:
    """A request is refused, or it survives; cleaning is idempotent, and the same request gives the same bytes."""
    try:
        data = dehydrate(request)
    except CodecError:
        return
    cleaned = clean_request(request)

    assert cleaned == rehydrate(data) == clean_request(cleaned)
    assert data == dehydrate(rehydrate(data))


@given(st.binary(max_size=80), st.integers(0, 600))
def test_any_bytes_give_a_request_or_a_codec_error(noise: bytes, place: int) -> None:
    """Also bytes that were a request once."""
    whole = dehydrate(full())
    for data in (noise, whole[:place], whole[:place] + noise + whole[place:]):
        try:
            assert isinstance(rehydrate(data), AgentRunRequest)
        except CodecError as error:
            assert error.document == "request"


@given(ANY_TEXT)
def test_a_message_given_as_a_dict_is_refused_without_its_words(text: str) -> None:
    """Code that hands over a broken message learns the place, not the content."""
    word = f"MARKER{text}"
    for message in ({"role": word}, {word: 1}, {"role": "user", "content": [word]}):
        with pytest.raises(CodecError) as caught:
            AgentRunRequest(configuration=1, messages=(message,))  # type: ignore[arg-type]
        assert "MARKER" not in str(caught.value)
        assert caught.value.path.startswith("$.messages[0]")


def test_sequences_are_frozen() -> None:
    """Lists and dicts are taken and held as tuples and messages."""
    request = AgentRunRequest(
        configuration=1,
        messages=[{"role": "user", "content": "x"}],  # type: ignore[arg-type]
        allowed_tool_names=["look"],  # type: ignore[arg-type]
        augmentation=RunAugmentation(forced_snippet_uids=[4]),  # type: ignore[arg-type]
    )

    assert (Message(role=Role.USER, content="x"),) == request.messages
    assert ("look",) == request.allowed_tool_names
    assert request == msgspec.structs.replace(request)
