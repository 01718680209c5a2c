from typing import Any

import pytest

from codec.errors import CodecError
from codec.facts import ToolFacts
from codec.request import ModelOptions
from codec.transcript import Message, SignedPart, ToolCall
from codec.vocabulary import DeclaredClass, Role, ToolEffect
from worker.adapters.models.openai_request import body_of
from worker.ports.models import ModelRequest


def body(*messages: Message, tools: tuple[ToolFacts, ...] = (), **options: Any) -> dict[str, Any]:
    request = ModelRequest(
        run="the-run", round=4, hop=1, key="the-key", messages=messages, tools=tools, options=ModelOptions(**options)
    )
    return body_of("some-model", request)


def tool(parameters: str, description: str = "") -> ToolFacts:
    return ToolFacts(
        name="look",
        description=description,
        parameters=parameters,
        effect=ToolEffect.READ_ONLY,
        data_class=DeclaredClass.PUBLIC_CONTENT,
        group="orders",
    )


def test_what_is_not_set_is_left_out() -> None:
    expected = {
        "model": "some-model",
        "messages": [{"role": "user", "content": "a"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }

    assert expected == body(Message(role=Role.USER, content="a"))
    assert expected == body(Message(role=Role.USER, content="a"), stop=())


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"max_tokens": 1}, {"max_tokens": 1}),
        ({"top_p": 0.0}, {"top_p": 0.0}),
        ({"stop": ("a", "")}, {"stop": ["a", ""]}),
        ({"seed": 0}, {"seed": 0}),
        ({"think": True}, {"reasoning_effort": "medium"}),
        ({"think": False}, {"reasoning_effort": "none"}),
        (
            {"response_schema": {}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": {}}}},
        ),
    ],
)
def test_each_option_has_its_word(options: dict[str, Any], sent: dict[str, Any]) -> None:
    assert body() | sent == body(**options)


def test_an_assistants_text_stays_beside_its_calls() -> None:
    call = ToolCall(id="", name="", arguments="no json")
    (sent,) = body(Message(role=Role.ASSISTANT, content="Let me see.", tool_calls=(call,)))["messages"]

    assert "Let me see." == sent["content"]
    assert [{"id": "", "type": "function", "function": {"name": "", "arguments": "no json"}}] == sent["tool_calls"]


def test_signed_parts_and_metadata_stay_here() -> None:
    signed = Message(role=Role.ASSISTANT, content="a", signed=(SignedPart(served_by="other", data="secret"),))

    sent = body(signed)

    assert [{"role": "assistant", "content": "a"}] == sent["messages"]
    assert not any(word in repr(sent) for word in ("secret", "the-run", "the-key"))


def test_a_tool_is_its_schema() -> None:
    schema = {"type": "object", "properties": {"x": {"const": None}}, "x-ours": [1.5, "ß"]}
    text = '{"type": "object", "properties": {"x": {"const": null}}, "x-ours": [1.5, "ß"]}'

    assert [{"type": "function", "function": {"name": "look", "parameters": schema}}] == body(tools=(tool(text),))[
        "tools"
    ]


@pytest.mark.parametrize("parameters", ["", "[]", "{", '{"a": NaN}'])
def test_a_schema_that_is_no_object_is_refused(parameters: str) -> None:
    with pytest.raises(CodecError):
        body(tools=(tool(parameters),))
