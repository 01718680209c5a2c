import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from codec.commands import Permit, Target
from codec.decisions import Decision
from codec.facts import ToolFacts
from codec.request import ModelOptions
from codec.transcript import Message, ModelReply, RawCall, ToolCall, Usage
from codec.vocabulary import DeclaredClass, FailureClass, FinishReason, Role, ToolEffect, TrustZone, Verdict
from worker.adapters.models.registry import ModelRegistry
from worker.adapters.models.scripted import ScriptedModels
from worker.ports.models import ModelRequest, Models, ModelSendError

RUN = "2f4c1e0a-0000-4000-8000-000000000001"
USER = Message(role=Role.USER, content="Hello.")
ASSISTANT = Message(role=Role.ASSISTANT, content="Yes?")


def permit(script: Path | None, provider: int = 1) -> Permit:
    target = Target(
        provider=provider,
        identifier="house",
        kind="scripted",
        configuration="support",
        model="some-model",
        zone=TrustZone.LOCAL,
        version=3,
        script=None if script is None else str(script),
    )
    return Permit(decision=Decision(verdict=Verdict.PERMITTED, configuration="support", policy=3), target=target)


def request(*messages: Message, **given: Any) -> ModelRequest:
    fields: dict[str, Any] = {
        "run": RUN,
        "round": 1,
        "hop": 0,
        "key": "key-1",
        "messages": messages or (USER,),
        "tools": (),
        "options": ModelOptions(),
    }
    return ModelRequest(**(fields | given))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.toml"


def write(script: Path, text: str) -> None:
    """Write a script that is told from the one before, however coarse the clock of the file system is."""
    before = script.stat().st_mtime_ns if script.exists() else 0
    script.write_text(text, encoding="utf-8")
    os.utime(script, ns=(0, before + 1))


async def send(models: ScriptedModels, script: Path | None, *messages: Message) -> ModelReply:
    return await models.send(permit(script), request(*messages), None)


async def failure(models: ScriptedModels, script: Path | None, provider: int = 1) -> FailureClass | None:
    try:
        await models.send(permit(script, provider), request(), None)
    except ModelSendError as error:
        return error.failure
    return None


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "sent.jsonl").read_text(encoding="utf-8").splitlines()]


# --- Answers ------------------------------------------------------------------------------------------------


async def test_the_nth_reply_answers_n_minus_one_assistant_messages(script: Path) -> None:
    write(script, '[[reply]]\ntext = "one"\n[[reply]]\ntext = "two"\n[[reply]]\ntext = "three"\n')
    models = ScriptedModels()

    assert "one" == (await send(models, script, USER)).text
    assert "two" == (await send(models, script, USER, ASSISTANT, USER)).text
    assert "three" == (await send(models, script, USER, ASSISTANT, ASSISTANT)).text
    assert "three" == (await send(models, script, *[ASSISTANT] * 9)).text
    assert "one" == (await send(models, script, USER)).text


async def test_an_answer_says_that_it_is_scripted(script: Path) -> None:
    write(script, '[[reply]]\ntext = "Hi."\nusage = { input_tokens = 3, output_tokens = 2 }\n')
    expected = ModelReply(text="Hi.", usage=Usage(input_tokens=3, output_tokens=2), model="some-model", note="scripted")

    assert expected == await send(ScriptedModels(), script)


async def test_the_run_stands_in_text_and_arguments(script: Path) -> None:
    text = """
        [[reply]]
        text = "run {run} and {other}"
        tool_calls = [
            { id = "a", name = "one", arguments = { who = "{run}", in = { list = ["x {run}"] } } },
            { id = "b", name = "two", arguments = '{"who": "{run}"' },
        ]
    """
    write(script, text)
    found = await send(ScriptedModels(), script)

    assert f"run {RUN} and {{other}}" == found.text
    assert (
        RawCall(id="a", name="one", arguments=f'{{"who":"{RUN}","in":{{"list":["x {RUN}"]}}}}'),
        RawCall(id="b", name="two", arguments=f'{{"who": "{RUN}"'),
    ) == found.calls
    assert FinishReason.TOOL_CALLS is found.finish


async def test_the_registry_finds_it(script: Path) -> None:
    write(script, '[[reply]]\ntext = "Hi."\n')
    models: Models = ModelRegistry({"scripted": ScriptedModels()})

    assert "Hi." == (await models.send(permit(script), request(), None)).text


async def test_progress_gets_the_text(script: Path) -> None:
    write(script, '[[reply]]\ntext = "Hi."\n')
    deltas: list[str] = []

    await ScriptedModels().send(permit(script), request(), deltas.append)

    assert ["Hi."] == deltas


async def test_a_changed_script_is_read_again(script: Path) -> None:
    models = ScriptedModels()
    write(script, '[[reply]]\ntext = "old"\n')
    assert "old" == (await send(models, script)).text

    write(script, '[[reply]]\ntext = "new"\n')

    assert "new" == (await send(models, script)).text


async def test_an_unchanged_script_is_not_read_again(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = ScriptedModels()
    write(script, '[[reply]]\ntext = "same"\n')
    await send(models, script)
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("read again"))

    assert "same" == (await send(models, script)).text


# --- Failures -----------------------------------------------------------------------------------------------


async def test_a_reply_fails_as_often_as_it_says_then_answers(script: Path) -> None:
    write(script, "[[reply]]\nfail = { status = 500, times = 2 }\n")
    models = ScriptedModels()
    failed = FailureClass.SERVER_ERROR

    assert [failed, failed, None, None] == [await failure(models, script) for _ in range(4)]
    assert [failed, failed, None] == [await failure(models, script, provider=2) for _ in range(3)]


async def test_each_reply_counts_for_itself(script: Path) -> None:
    write(script, "[[reply]]\nfail = { status = 429, times = 1 }\n[[reply]]\nfail = { status = 401, times = 1 }\n")
    models = ScriptedModels()

    assert FailureClass.RATE_LIMIT is await failure(models, script)
    with pytest.raises(ModelSendError) as caught:
        await send(models, script, ASSISTANT)
    assert FailureClass.AUTH is caught.value.failure
    assert "" == (await send(models, script, ASSISTANT)).text


@pytest.mark.parametrize("text", ["", "[[reply]]\ntxet = 1", "not toml"])
async def test_a_bad_script_is_a_matter_of_configuration(script: Path, text: str) -> None:
    write(script, text)

    assert FailureClass.CONFIGURATION is await failure(ScriptedModels(), script)


async def test_no_script_is_a_matter_of_configuration(tmp_path: Path) -> None:
    assert FailureClass.CONFIGURATION is await failure(ScriptedModels(), None)
    assert FailureClass.CONFIGURATION is await failure(ScriptedModels(), tmp_path / "absent.toml")


async def test_a_record_that_cannot_be_written_is_a_matter_of_configuration(script: Path) -> None:
    write(script, 'record = "absent/sent.jsonl"\n[[reply]]\n')

    assert FailureClass.CONFIGURATION is await failure(ScriptedModels(), script)


async def test_a_send_can_be_cancelled_while_it_waits(script: Path) -> None:
    write(script, "[[reply]]\ndelay_ms = 60000\n")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await send(ScriptedModels(), script)


# --- The record ---------------------------------------------------------------------------------------------


async def test_a_send_is_recorded_as_it_was(tmp_path: Path, script: Path) -> None:
    write(script, 'record = "sent.jsonl"\n[[reply]]\n')
    calls = (
        ToolCall(id="c1", name="lookup", arguments='{"order": 7, "ä": {"big": 123456789012345678901234567890}}'),
        ToolCall(id="c2", name="lookup", arguments='{"order": 7'),
        ToolCall(id="c3", name="lookup", arguments='{"a": 1, "a": 2}'),
        ToolCall(id="c4", name="lookup", arguments="[1]"),
    )
    tool = ToolFacts(
        name="lookup",
        description="",
        parameters="{}",
        effect=ToolEffect.READ_ONLY,
        data_class=DeclaredClass.PUBLIC_CONTENT,
        group="general",
    )
    messages = (
        Message(role=Role.SYSTEM, content="Be\nkind. ä"),
        Message(role=Role.ASSISTANT, tool_calls=calls),
        Message(role=Role.TOOL, content="paid", tool_call_id="c1"),
    )
    sent = request(*messages, round=2, hop=1, tools=(tool,), options=ModelOptions(temperature=0.0, stop=("x",)))

    await ScriptedModels(clock=lambda: 1700.5).send(permit(script), sent, None)

    raw = (tmp_path / "sent.jsonl").read_text(encoding="utf-8")
    arguments: list[Any] = [
        {"order": 7, "ä": {"big": 123456789012345678901234567890}},
        '{"order": 7',
        '{"a": 1, "a": 2}',
        "[1]",
    ]
    assert 1 == raw.count("\n")
    assert {
        "run": RUN,
        "provider": "house",
        "configuration": "support",
        "model": "some-model",
        "round": 2,
        "hop": 1,
        "key": "key-1",
        "at": 1700.5,
        "messages": [
            {"role": "system", "content": "Be\nkind. ä", "tool_calls": [], "tool_call_id": None},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": call.id, "name": call.name, "arguments": decoded}
                    for call, decoded in zip(calls, arguments, strict=True)
                ],
                "tool_call_id": None,
            },
            {"role": "tool", "content": "paid", "tool_calls": [], "tool_call_id": "c1"},
        ],
        "tools": ["lookup"],
        "options": {"temperature": 0.0, "stop": ["x"]},
    } == json.loads(raw)


async def test_failed_sends_are_recorded_too_and_before_the_answer(tmp_path: Path, script: Path) -> None:
    write(script, 'record = "sent.jsonl"\n[[reply]]\nfail = { status = 500, times = 1 }\ndelay_ms = 60000\n')
    models = ScriptedModels()
    task = asyncio.create_task(failure(models, script))
    await asyncio.sleep(0)

    assert 1 == len(lines(tmp_path))

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_lines_of_many_senders_stay_whole(tmp_path: Path, script: Path) -> None:
    write(script, 'record = "sent.jsonl"\n[[reply]]\ndelay_ms = 1\n')
    long = Message(role=Role.USER, content="x" * 100_000)
    models = [ScriptedModels() for _ in range(4)]
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(send(models[number % 4], script, long))

    assert 20 == len(lines(tmp_path))


async def test_a_record_holds_prompts_so_only_its_owner_reads_it(tmp_path: Path, script: Path) -> None:
    write(script, 'record = "sent.jsonl"\n[[reply]]\n')
    await send(ScriptedModels(), script)

    assert 0o600 == stat.S_IMODE((tmp_path / "sent.jsonl").stat().st_mode)
