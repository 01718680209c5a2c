"""Kind `openai` through the official SDK against a real server that misbehaves in every way that matters."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import time
import traceback
from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any

import pytest

from codec.commands import Permit, Target
from codec.decisions import Decision
from codec.facts import ToolFacts
from codec.request import ModelOptions
from codec.transcript import Message, ModelReply, RawCall, ToolCall, Usage
from codec.vocabulary import DeclaredClass, FailureClass, FinishReason, Role, ToolEffect, TrustZone, Verdict
from tests.support.openai_server import (
    Behaviour,
    Exchange,
    OpenAIServer,
    answers,
    called,
    chunk,
    completion,
    events,
    openai_server,
    streams,
    text,
    usage,
)
from worker.adapters.models.openai import MAX_SENDERS, OpenAIModels, Timeouts
from worker.ports.models import ModelRequest, Models, ModelSendError
from worker.ports.timeliness import performing

PROMPT = "marker-of-the-prompt"
ANSWER = "marker-of-the-answer"
KEY = "marker-of-the-key"
ANY_OTHER_KEY = "marker-of-another-key"
KEYS = {"REGATE_KEY_HOUSE": KEY, "REGATE_KEY_OTHER": ANY_OTHER_KEY}
HELLO = streams(text("Hi "), text("there."), chunk(finish="stop"), usage(7, 2))
NOW = 1_800_000_000.0


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with openai_server() as running:
        running.will(HELLO)
        yield running


@pytest.fixture
async def models() -> AsyncIterator[OpenAIModels]:
    sending = OpenAIModels(KEYS, timeouts=Timeouts(connect=5.0, read=0.5), clock=lambda: NOW)
    yield sending
    await sending.close()


def permit(base_url: str | None, variable: str | None = "REGATE_KEY_HOUSE", model: str = "some-model") -> Permit:
    target = Target(
        provider=1,
        identifier="house",
        kind="openai",
        configuration="support",
        model=model,
        zone=TrustZone.LOCAL,
        version=3,
        base_url=base_url,
        key_variable=variable,
    )
    return Permit(decision=Decision(verdict=Verdict.PERMITTED, configuration="support", policy=3), target=target)


def request(*messages: Message, **given: Any) -> ModelRequest:
    fields: dict[str, Any] = {
        "run": "run-1",
        "round": 1,
        "hop": 0,
        "key": "key-1",
        "messages": messages or (Message(role=Role.USER, content=PROMPT),),
        "tools": (),
        "options": ModelOptions(),
    }
    return ModelRequest(**(fields | given))


async def ask(models: Models, server: OpenAIServer, *messages: Message, **given: Any) -> ModelReply:
    async with asyncio.timeout(20):
        return await models.send(permit(server.base_url), request(*messages, **given), None)


async def failed(models: Models, server: OpenAIServer, *behaviours: Behaviour) -> ModelSendError:
    """Send once, which fails, and make sure that nothing of the send is in the error."""
    if behaviours:
        server.will(*behaviours)
    with pytest.raises(ModelSendError) as caught:
        await ask(models, server)
    told = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
    assert not any(marker in told for marker in (PROMPT, ANSWER, KEY))
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    return caught.value


async def failure(models: Models, server: OpenAIServer, *behaviours: Behaviour) -> FailureClass:
    return (await failed(models, server, *behaviours)).failure


# --- What is sent -------------------------------------------------------------------------------------------


async def test_exactly_the_documented_request_leaves(models: OpenAIModels, server: OpenAIServer) -> None:
    await ask(models, server)

    (sent,) = server.sent
    assert "POST /v1/chat/completions HTTP/1.1" == sent.line
    assert {
        "host": f"127.0.0.1:{server.port}",
        "authorization": f"Bearer {KEY}",
        "content-type": "application/json",
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",
        "user-agent": "regate",
        "connection": "close",
        "content-length": str(len(sent.raw)),
    } == dict(sent.headers)
    assert len(dict(sent.headers)) == len(sent.headers)
    assert {
        "model": "some-model",
        "messages": [{"role": "user", "content": PROMPT}],
        "stream": True,
        "stream_options": {"include_usage": True},
    } == sent.body


async def test_a_conversation_tools_and_options_leave_as_they_are(models: OpenAIModels, server: OpenAIServer) -> None:
    call = ToolCall(id="c1", name="look", arguments='{"order": 7, broken')
    schema = {"type": "object", "properties": {"größe": {"type": "integer", "maximum": 2**70}}, "$defs": {}}
    tool = ToolFacts(
        name="look",
        description="Looks.",
        parameters=json.dumps(schema),
        effect=ToolEffect.READ_ONLY,
        data_class=DeclaredClass.PUBLIC_CONTENT,
        group="orders",
    )
    messages = (
        Message(role=Role.SYSTEM, content="Be brief."),
        Message(role=Role.USER, content="Grüße 🙂\u2028"),
        Message(role=Role.ASSISTANT, tool_calls=(call,)),
        Message(role=Role.TOOL, content="found", tool_call_id="c1"),
        Message(role=Role.ASSISTANT, content=""),
    )
    options = ModelOptions(
        temperature=0.0,
        max_tokens=5,
        top_p=1.0,
        stop=("END",),
        seed=-1,
        think=False,
        response_schema={"type": "object", "properties": {"model": {"type": "string"}}},
    )

    await ask(models, server, *messages, tools=(tool,), options=options)

    body = server.sent[0].body
    sent_call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": call.arguments}}
    assert [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Grüße 🙂\u2028"},
        {"role": "assistant", "content": None, "tool_calls": [sent_call]},
        {"role": "tool", "content": "found", "tool_call_id": "c1"},
        {"role": "assistant", "content": ""},
    ] == body.pop("messages")
    function = {"name": "look", "description": "Looks.", "parameters": schema}
    assert [{"type": "function", "function": function}] == body.pop("tools")
    format_ = {"type": "json_schema", "json_schema": {"name": "reply", "schema": options.response_schema}}
    assert {
        "model": "some-model",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "max_tokens": 5,
        "top_p": 1.0,
        "stop": ["END"],
        "seed": -1,
        "reasoning_effort": "none",
        "response_format": format_,
    } == body


async def test_nothing_of_the_environment_counts(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with openai_server() as trap:
        trap.will(HELLO)
        proxy = f"http://trap:trap@127.0.0.1:{trap.port}"
        traps = {
            "OPENAI_API_KEY": "trap",
            "OPENAI_ADMIN_KEY": "trap",
            "OPENAI_ORG_ID": "trap",
            "OPENAI_PROJECT_ID": "trap",
            "OPENAI_WEBHOOK_SECRET": "trap",
            "OPENAI_BASE_URL": trap.base_url,
            "OPENAI_CUSTOM_HEADERS": "Authorization: Bearer trap\nX-Trap: trap\nHost: trap",
            "OPENAI_LOG": "debug",
            "HTTP_PROXY": proxy,
            "HTTPS_PROXY": proxy,
            "ALL_PROXY": proxy,
            "NO_PROXY": "",
        }
        for name, value in traps.items():
            monkeypatch.setenv(name, value)
            if name.endswith("_PROXY"):
                monkeypatch.setenv(name.lower(), value)
        models = OpenAIModels(KEYS)
        await ask(models, server)
        await models.close()

        assert 0 == trap.connections
    (sent,) = server.sent
    assert f"Bearer {KEY}" == sent.header("authorization")
    assert "trap" not in repr(sent).lower()
    assert [] == [record for record in caplog.records if record.name.startswith(("openai", "httpx", "httpcore"))]


async def test_a_netrc_file_is_not_read(
    server: OpenAIServer, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, models: OpenAIModels
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login trap password trap\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))

    await ask(models, server)

    assert f"Bearer {KEY}" == server.sent[0].header("authorization")


async def test_nothing_is_kept_from_one_send_to_the_next(models: OpenAIModels, server: OpenAIServer) -> None:
    async def sets_cookie(exchange: Exchange) -> None:
        await exchange.start(("Set-Cookie", "a=b; Path=/"), ("Connection", "keep-alive"))
        await exchange.piece(events([chunk({"content": "x"}, "stop")]))
        await exchange.end()

    server.will(sets_cookie)
    for _ in range(2):
        await ask(models, server)

    assert server.sent[0].headers == server.sent[1].headers


async def test_the_key_is_the_targets_variable(models: OpenAIModels, server: OpenAIServer) -> None:
    for variable in ("REGATE_KEY_OTHER", None, "REGATE_KEY_HOUSE"):
        await models.send(permit(server.base_url, variable), request(), None)

    expected = [f"Bearer {ANY_OTHER_KEY}", "Bearer none", f"Bearer {KEY}"]
    assert expected == [sent.header("authorization") for sent in server.sent]
    assert [1, 2, 3] == [sent.connection for sent in server.sent]


@pytest.mark.parametrize("key", [None, "", "with space", "line\nX-Trap: 1", "clé", "nul\x00"])
async def test_a_key_that_cannot_be_sent_is_a_matter_of_configuration(server: OpenAIServer, key: str | None) -> None:
    models = OpenAIModels({} if key is None else {"REGATE_KEY_HOUSE": key})

    assert FailureClass.CONFIGURATION is await failure(models, server)
    assert [] == server.sent


@pytest.mark.parametrize("base_url", [None, "", "ftp://127.0.0.1/v1", "127.0.0.1/v1", "http://[::1/v1", "http://"])
async def test_a_base_url_that_cannot_be_used_is_a_matter_of_configuration(
    models: OpenAIModels, base_url: str | None
) -> None:
    with pytest.raises(ModelSendError) as caught:
        await models.send(permit(base_url), request(), None)

    assert FailureClass.CONFIGURATION is caught.value.failure
    assert caught.value.__context__ is None


async def test_a_slash_at_the_end_of_the_base_url_changes_nothing(models: OpenAIModels, server: OpenAIServer) -> None:
    await models.send(permit(server.base_url + "/"), request(), None)

    assert "POST /v1/chat/completions HTTP/1.1" == server.sent[0].line


async def test_a_changed_key_is_used_at_once(server: OpenAIServer) -> None:
    keys = dict(KEYS)
    models = OpenAIModels(keys)
    await ask(models, server)
    keys["REGATE_KEY_HOUSE"] = ANY_OTHER_KEY
    await ask(models, server)
    await models.close()

    assert [f"Bearer {KEY}", f"Bearer {ANY_OTHER_KEY}"] == [sent.header("authorization") for sent in server.sent]


# --- Replies ------------------------------------------------------------------------------------------------


async def test_a_stream_gives_one_whole_reply_and_its_deltas(models: OpenAIModels, server: OpenAIServer) -> None:
    expected = ModelReply(text="Hi there.", usage=Usage(input_tokens=7, output_tokens=2), model="served-model")
    deltas: list[str] = []

    assert expected == await models.send(permit(server.base_url), request(), deltas.append)
    assert ["Hi ", "there."] == deltas


async def test_a_server_that_does_not_stream_is_understood(models: OpenAIModels, server: OpenAIServer) -> None:
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "a", "arguments": "{}"}},
        {"id": "c1", "type": "function", "function": {"name": "b", "arguments": ""}},
        {"type": "function", "function": {}},
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    counts = {"prompt_tokens": 3, "completion_tokens": 4}
    server.will(answers(200, completion(message, "tool_calls", usage=counts)))
    expected = ModelReply(
        calls=(RawCall(id="c1", name="a", arguments="{}"), RawCall(id="c1", name="b"), RawCall()),
        usage=Usage(input_tokens=3, output_tokens=4),
        finish=FinishReason.TOOL_CALLS,
        model="served-model",
    )

    assert expected == await ask(models, server)


async def test_progress_gets_an_unstreamed_text_too(models: OpenAIModels, server: OpenAIServer) -> None:
    server.will(answers(200, completion()))
    deltas: list[str] = []

    await models.send(permit(server.base_url), request(), deltas.append)

    assert ["whole"] == deltas


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 7, 0])
async def test_events_are_read_wherever_pieces_end(
    models: OpenAIModels, server: OpenAIServer, line_end: str, size: int
) -> None:
    server.will(streams(text("Grü"), text("ße 🙂"), chunk(finish="stop"), usage(1, 2), line_end=line_end, size=size))

    reply = await ask(models, server)

    assert "Grüße 🙂" == reply.text
    assert Usage(input_tokens=1, output_tokens=2) == reply.usage


async def test_comments_names_and_ids_of_events_are_passed_over(models: OpenAIModels, server: OpenAIServer) -> None:
    lines = [
        ": OPENROUTER PROCESSING",
        "",
        "event: message",
        "id: 7",
        "retry: 1000",
        f"data:{json.dumps(text('a'))}",
        ":",
        "",
        "",
        "data: {",
        'data: "choices": []}',
        "",
        f"data: {json.dumps(chunk(finish='stop'))}",
        "",
        "data:[DONE]",
        "",
        "data: not json",
        "",
        "",
    ]
    server.will(answers(200, "\n".join(lines).encode(), kind="Text/Event-Stream; charset=utf-8"))

    assert "a" == (await ask(models, server)).text


async def test_deltas_of_calls_are_merged_by_index(models: OpenAIModels, server: OpenAIServer) -> None:
    server.will(
        streams(
            called(1, id="b", name="two", arguments=""),
            called(0, id="a", name="one"),
            called(1, arguments='{"x":'),
            called(0, arguments="{"),
            called(1, arguments=" 1, 1"),
            called(0, arguments="}"),
            chunk(finish="tool_calls"),
        )
    )

    reply = await ask(models, server)

    assert (
        RawCall(id="a", name="one", arguments="{}"),
        RawCall(id="b", name="two", arguments='{"x": 1, 1'),
    ) == reply.calls
    assert FinishReason.TOOL_CALLS is reply.finish


async def test_ids_of_calls_stay_as_they_came(models: OpenAIModels, server: OpenAIServer) -> None:
    server.will(
        streams(
            called(0, id="same", name="one"),
            called(1, id="same", name="two"),
            called(2, name="three"),
            called(3, id="", name="four"),
            chunk(finish="tool_calls"),
        )
    )

    expected = [("same", "one"), ("same", "two"), ("", "three"), ("", "four")]
    assert expected == [(call.id, call.name) for call in (await ask(models, server)).calls]


async def test_calls_at_one_index_or_none_are_told_apart(models: OpenAIModels, server: OpenAIServer) -> None:
    server.will(
        streams(
            called(0, id="a", name="one", arguments="{}"),
            called(0, id="b", name="two", arguments="{}"),
            called(0, id="b", name="two", arguments=" "),
            chunk(finish="tool_calls"),
        ),
        streams(
            called(None, name="one", arguments="{}"),
            called(None, name="one", arguments="{"),
            called(None, arguments="}"),
            chunk(finish="tool_calls"),
        ),
    )

    first, second = await ask(models, server), await ask(models, server)

    expected = (RawCall(id="a", name="one", arguments="{}"), RawCall(id="b", name="two", arguments="{} "))
    assert expected == first.calls
    assert (RawCall(name="one", arguments="{}"), RawCall(name="one", arguments="{}")) == second.calls


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", FinishReason.STOP),
        ("tool_calls", FinishReason.TOOL_CALLS),
        ("length", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("eos", FinishReason.STOP),
        ("insufficient_system_resource", FinishReason.LENGTH),
    ],
)
async def test_each_finish_reason_has_its_class(
    models: OpenAIModels, server: OpenAIServer, reason: str, finish: FinishReason
) -> None:
    server.will(streams(text("a"), chunk(finish=reason)), answers(200, completion(finish=reason)))

    assert [finish, finish] == [(await ask(models, server)).finish for _ in range(2)]


async def test_a_whole_answer_without_a_reason_is_the_worst_case(models: OpenAIModels, server: OpenAIServer) -> None:
    server.will(answers(200, completion(finish=None)))

    assert FinishReason.LENGTH is (await ask(models, server)).finish


async def test_a_refusal_is_the_text_and_filtered(models: OpenAIModels, server: OpenAIServer) -> None:
    refusal = {"role": "assistant", "content": None, "refusal": "I will not."}
    server.will(
        streams(chunk({"refusal": "I will"}), chunk({"refusal": " not."}), chunk(finish="stop")),
        answers(200, completion(refusal)),
    )

    for _ in range(2):
        reply = await ask(models, server)
        assert ("I will not.", FinishReason.CONTENT_FILTER) == (reply.text, reply.finish)


async def test_what_is_not_asked_for_is_not_kept(models: OpenAIModels, server: OpenAIServer) -> None:
    second = {"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}
    server.will(
        streams(
            chunk({"role": "assistant", "reasoning_content": "thinking", "reasoning": "too"}),
            {"choices": [second]},
            chunk({"content": "yes", "audio": {"id": 1}}, "stop", system_fingerprint=7),
        )
    )

    expected = ModelReply(text="yes", model="served-model")
    assert expected == await ask(models, server)


async def test_a_pair_of_surrogates_over_two_deltas_stays_in_order(models: OpenAIModels, server: OpenAIServer) -> None:
    deltas: list[str] = []
    server.will(streams(text("\ud83d"), text("\ude42"), chunk(finish="stop")))

    reply = await models.send(permit(server.base_url), request(), deltas.append)

    assert "🙂" == reply.text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    assert "\ufffd\ufffd" == "".join(deltas)


async def test_a_stream_without_end_mark_is_whole_with_its_reason(models: OpenAIModels, server: OpenAIServer) -> None:
    server.will(streams(text("a"), chunk(finish="stop"), done=False))

    assert "a" == (await ask(models, server)).text


async def test_a_server_that_goes_on_after_the_end_mark_holds_up_nobody(
    models: OpenAIModels, server: OpenAIServer
) -> None:
    async def lingers(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.piece(events([text("a"), chunk(finish="stop")]))
        exchange.keep = False
        await exchange.gone()

    server.will(lingers)

    assert "a" == (await ask(models, server)).text
    await server.emptied()


# --- Failures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (301, FailureClass.CONFIGURATION),
        (307, FailureClass.CONFIGURATION),
        (400, FailureClass.CLIENT_ERROR),
        (401, FailureClass.AUTH),
        (403, FailureClass.AUTH),
        (404, FailureClass.CLIENT_ERROR),
        (409, FailureClass.CLIENT_ERROR),
        (422, FailureClass.CLIENT_ERROR),
        (429, FailureClass.RATE_LIMIT),
        (500, FailureClass.SERVER_ERROR),
        (503, FailureClass.SERVER_ERROR),
    ],
)
async def test_each_status_has_its_class_and_is_sent_once(
    models: OpenAIModels, server: OpenAIServer, status: int, expected: FailureClass
) -> None:
    body = {"error": {"message": ANSWER, "echo": PROMPT, "key": KEY}}
    headers = (("Location", f"/v2?{ANSWER}"), ("x-should-retry", "true"))

    assert expected is await failure(models, server, answers(status, body, *headers))
    assert 1 == len(server.sent)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("header", "wait"),
    [
        ("7", 7_000),
        ("0.25", 250),
        (formatdate(NOW + 90, usegmt=True), 90_000),
        (formatdate(NOW - 90, usegmt=True), 0),
        ("86400", 3_600_000),
        ("9" * 5_000, 3_600_000),
        ("-3", 0),
        ("soon", 0),
        ("", 0),
    ],
)
async def test_a_retry_after_is_told(
    models: OpenAIModels, server: OpenAIServer, status: int, header: str, wait: int
) -> None:
    error = await failed(models, server, answers(status, {}, ("Retry-After", header)))

    assert wait == error.not_before_ms


@pytest.mark.parametrize(
    "document",
    [
        [],
        "text",
        None,
        7,
        {},
        {"choices": None},
        {"choices": []},
        {"choices": {}},
        {"choices": ["a"]},
        {"choices": [{}]},
        {"choices": [{"message": None, "finish_reason": "stop"}]},
        completion({"content": 7}),
        completion({"content": [{"type": "text", "text": "a"}]}),
        completion({"content": "a", "refusal": 1}),
        completion({"tool_calls": {}}),
        completion({"tool_calls": [7]}),
        completion({"tool_calls": [{"id": 7}]}),
        completion({"tool_calls": [{"function": "look"}]}),
        completion({"tool_calls": [{"function": {"name": 7}}]}),
        completion({"tool_calls": [{"function": {"arguments": {"order": 7}}}]}),
        completion(finish=7),
        completion(model=7),
        completion(usage="many"),
        completion(usage={"prompt_tokens": -1}),
        completion(usage={"prompt_tokens": 10**400}),
        completion(usage={"prompt_tokens": True}),
    ],
)
async def test_wrong_types_are_refused(models: OpenAIModels, server: OpenAIServer, document: object) -> None:
    assert FailureClass.INVALID_REPLY is await failure(models, server, answers(200, document))


@pytest.mark.parametrize(
    "document",
    [
        7,
        [],
        {"choices": 7},
        chunk({"content": 7}),
        chunk({"tool_calls": [{"index": "0"}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": {}}}]}),
        chunk("text"),
        {"usage": []},
    ],
)
async def test_wrong_types_in_a_stream_are_refused(
    models: OpenAIModels, server: OpenAIServer, document: object
) -> None:
    behaviour = streams(text(ANSWER), document, chunk(finish="stop"))

    assert FailureClass.INVALID_REPLY is await failure(models, server, behaviour)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        json.dumps(completion()).encode()[:-1],
        b"<html>" + ANSWER.encode(),
        b'{"choices": NaN}',
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"usage": ' + b"9" * 5_000 + b"}",
    ],
)
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_what_is_no_json_is_refused(models: OpenAIModels, server: OpenAIServer, body: bytes, kind: str) -> None:
    data = b"data: " + body + b"\n\n" if kind == "text/event-stream" else body

    assert FailureClass.INVALID_REPLY is await failure(models, server, answers(200, data, kind=kind))


async def test_events_under_a_wrong_content_type_are_refused(models: OpenAIModels, server: OpenAIServer) -> None:
    data = events([text(ANSWER), chunk(finish="stop")])

    assert FailureClass.INVALID_REPLY is await failure(models, server, answers(200, data, kind="text/html"))


async def test_a_packed_answer_is_refused(models: OpenAIModels, server: OpenAIServer) -> None:
    packed = answers(200, gzip.compress(json.dumps(completion()).encode()), ("Content-Encoding", "gzip"))

    assert FailureClass.INVALID_REPLY is await failure(models, server, packed)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (429, FailureClass.RATE_LIMIT),
        (400, FailureClass.CLIENT_ERROR),
        ("overloaded", FailureClass.SERVER_ERROR),
        (None, FailureClass.SERVER_ERROR),
        (200, FailureClass.SERVER_ERROR),
    ],
)
async def test_an_error_in_place_of_an_answer_has_its_class(
    models: OpenAIModels, server: OpenAIServer, code: object, expected: FailureClass
) -> None:
    error = {"error": {"message": ANSWER, "code": code}}

    assert expected is await failure(models, server, streams(text("a"), error, chunk(finish="stop")))
    assert expected is await failure(models, server, answers(200, error))


async def cut(exchange: Exchange) -> None:
    await exchange.start()
    await exchange.piece(events([text(ANSWER), text(ANSWER)], done=False))
    exchange.keep = False


async def cut_by_length(exchange: Exchange) -> None:
    body = json.dumps(completion()).encode()
    await exchange.head(200, ("Content-Type", "application/json"), ("Content-Length", str(len(body))))
    await exchange.write(body[:-5])
    exchange.keep = False


async def cut_until_close(exchange: Exchange) -> None:
    await exchange.head(200, ("Content-Type", "text/event-stream"))
    await exchange.write(events([text(ANSWER)], done=False))
    exchange.keep = False


async def says_nothing(exchange: Exchange) -> None:
    exchange.keep = False


async def resets(exchange: Exchange) -> None:
    await exchange.start()
    exchange.writer.transport.abort()
    exchange.keep = False


async def speaks_no_http(exchange: Exchange) -> None:
    await exchange.write(b"SSH-2.0-OpenSSH_9.2 " + ANSWER.encode() + b"\r\n\r\n")
    exchange.keep = False


async def huge_headers(exchange: Exchange) -> None:
    await exchange.start(("X-Big", ANSWER * 20_000))
    exchange.keep = False


async def slow_headers(exchange: Exchange) -> None:
    exchange.keep = False
    await exchange.gone()


async def slow_bytes(exchange: Exchange) -> None:
    await exchange.start()
    await exchange.piece(events([text(ANSWER)], done=False))
    exchange.keep = False
    await exchange.gone()


@pytest.mark.parametrize(
    "behaviour",
    [
        cut,
        cut_by_length,
        cut_until_close,
        says_nothing,
        resets,
        speaks_no_http,
        huge_headers,
        slow_headers,
        slow_bytes,
    ],
)
async def test_a_lost_connection_is_retryable_and_left_behind(
    models: OpenAIModels, server: OpenAIServer, behaviour: Behaviour
) -> None:
    found = await failure(models, server, behaviour)

    assert FailureClass.CONNECTION is found
    assert found.retryable
    assert 1 == len(server.sent)
    await server.emptied()


async def test_no_server_is_a_lost_connection(models: OpenAIModels) -> None:
    with pytest.raises(ModelSendError) as caught:
        await models.send(permit("http://127.0.0.1:1/v1"), request(), None)

    assert FailureClass.CONNECTION is caught.value.failure


async def test_a_server_without_tls_is_a_lost_connection(server: OpenAIServer) -> None:
    models = OpenAIModels(KEYS, timeouts=Timeouts(connect=0.5))
    with pytest.raises(ModelSendError) as caught:
        await models.send(permit(f"https://127.0.0.1:{server.port}/v1"), request(), None)

    assert FailureClass.CONNECTION is caught.value.failure
    assert [] == server.sent
    await models.close()


@pytest.mark.parametrize("done", [True, False])
async def test_a_stream_that_ends_early_in_good_order_is_no_reply(
    models: OpenAIModels, server: OpenAIServer, *, done: bool
) -> None:
    behaviours = (streams(text(ANSWER), done=done), streams(done=done), streams(usage(1, 1), done=done))
    for behaviour in behaviours:
        assert FailureClass.INVALID_REPLY is await failure(models, server, behaviour)


async def endless(exchange: Exchange, data: bytes, kind: str) -> None:
    await exchange.start(kind=kind)
    for _ in range(20 * 16):
        await exchange.piece(data)
    exchange.keep = False


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("application/json", b" " * 65_536),
        ("text/event-stream", b"x" * 65_536),
        ("text/event-stream", b"data: " + b"x" * 65_529 + b"\n"),
        ("text/event-stream", events([text("x" * 65_000)], done=False)),
        ("text/event-stream", events([called(0, id="a", name="n", arguments="x" * 65_000)], done=False)),
        ("text/event-stream", events([called(0, name="ab"), called(0, name="c")], done=False) * 200),
    ],
)
async def test_twenty_megabytes_are_refused(models: OpenAIModels, server: OpenAIServer, kind: str, data: bytes) -> None:
    began = time.monotonic()

    async def behave(exchange: Exchange) -> None:
        await endless(exchange, data, kind)

    assert FailureClass.INVALID_REPLY is await failure(models, server, behave)
    assert time.monotonic() - began < 10
    await server.emptied()


async def test_a_long_stream_of_small_tokens_is_a_reply(models: OpenAIModels, server: OpenAIServer) -> None:
    """What counts is what is kept: 18 MB of events hold 24 KB of text."""
    token = events([chunk({"content": "four"}, padding="x" * 2_900)], done=False) * 50

    async def behave(exchange: Exchange) -> None:
        await exchange.start()
        for _ in range(120):
            await exchange.piece(token)
        await exchange.piece(events([chunk(finish="stop")]))
        await exchange.end()

    server.will(behave)

    assert "four" * 6_000 == (await ask(models, server)).text


# --- Connections --------------------------------------------------------------------------------------------


async def test_each_send_has_a_connection_of_its_own_and_leaves_none(
    models: OpenAIModels, server: OpenAIServer
) -> None:
    """A server that closes a connection just as it would be used again can lose no send."""

    async def closes(exchange: Exchange) -> None:
        await HELLO(exchange)
        exchange.keep = False

    server.will(HELLO, closes, HELLO)
    for _ in range(3):
        assert "Hi there." == (await ask(models, server)).text

    assert [1, 2, 3] == [sent.connection for sent in server.sent]
    await server.emptied()


@pytest.mark.parametrize("behaviour", [slow_headers, slow_bytes])
async def test_a_cancelled_send_leaves_no_connection(server: OpenAIServer, behaviour: Behaviour) -> None:
    models = OpenAIModels(KEYS)
    server.will(behaviour)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await models.send(permit(server.base_url), request(), None)

    await server.emptied()
    server.will(HELLO)
    assert "Hi there." == (await ask(models, server)).text
    await models.close()


async def test_sends_to_one_place_overlap(models: OpenAIModels, server: OpenAIServer) -> None:
    together = asyncio.Barrier(20)

    async def waits(exchange: Exchange) -> None:
        await together.wait()
        await HELLO(exchange)

    server.will(waits)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(models, server)) for _ in range(20)]

    assert ["Hi there."] * 20 == [task.result().text for task in tasks]


async def test_few_places_are_kept_open_and_none_that_is_busy_is_closed(server: OpenAIServer) -> None:
    keys = {f"REGATE_KEY_{n}": f"key-{n}" for n in range(MAX_SENDERS + 8)}
    models = OpenAIModels(keys)
    release = asyncio.Event()

    async def waits(exchange: Exchange) -> None:
        await release.wait()
        await HELLO(exchange)

    server.will(waits, HELLO)
    busy = asyncio.create_task(models.send(permit(server.base_url, "REGATE_KEY_0"), request(), None))
    await server.asked.wait()
    for variable in list(keys)[1:]:
        await models.send(permit(server.base_url, variable), request(), None)
    release.set()

    assert "Hi there." == (await busy).text
    assert len(models._held) <= MAX_SENDERS
    await models.close()
    await server.emptied()


# --- Silence ------------------------------------------------------------------------------------------------


async def test_nothing_is_logged_at_any_level(
    models: OpenAIModels, server: OpenAIServer, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["", "openai", "httpx2", "httpcore2"]
    names += [name for name in logging.root.manager.loggerDict if name.startswith(("openai", "httpx2", "httpcore2"))]
    for name in names:
        caplog.set_level(logging.DEBUG, logger=name)

    await ask(models, server)
    await failed(models, server, answers(500, {"error": ANSWER}))
    await failed(models, server, cut)

    strangers = [record for record in caplog.records if record.name != "asyncio"]
    assert [] == strangers
    logging.getLogger("httpx2").info("somebody else's")
    assert "somebody else's" in caplog.text


def test_neither_reprs_nor_the_cache_hold_a_key() -> None:
    models = OpenAIModels(KEYS)

    assert KEY not in repr(models)
    assert KEY not in repr(models._place(permit("http://127.0.0.1:1").target)[0])


async def test_nothing_leaves_under_a_permit_that_grew_too_old_while_connecting(
    models: OpenAIModels, server: OpenAIServer
) -> None:
    with performing(lambda: False):
        assert FailureClass.PERMIT_EXPIRED is await failure(models, server)

    assert [] == server.sent
