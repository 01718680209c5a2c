from pathlib import Path

import pytest

from codec.transcript import RawCall, Usage
from codec.vocabulary import FinishReason
from worker.adapters.models.script import Fail, Reply, Script, ScriptError, check_script, read_script


def read(tmp_path: Path, text: str) -> Script:
    path = tmp_path / "script.toml"
    path.write_text(text, encoding="utf-8")
    return read_script(path)


def problem(tmp_path: Path, text: str) -> str:
    with pytest.raises(ScriptError) as caught:
        read(tmp_path, text)
    assert caught.value.__context__ is None
    assert f"script: {caught.value.problem}" == str(caught.value)
    return caught.value.problem


def test_an_empty_reply_has_defaults(tmp_path: Path) -> None:
    expected = Reply(text="", calls=(), usage=Usage(), delay_ms=0, fail=None, finish=FinishReason.STOP)

    assert Script(replies=(expected,), record=None) == read(tmp_path, "[[reply]]")


def test_everything_can_be_said(tmp_path: Path) -> None:
    text = """
        record = "sent.jsonl"
        [[reply]]
        text = "A"
        tool_calls = [
            { id = "c1", name = "lookup", arguments = { order = 7, tags = ["ä", { x = 1.5 }] } },
            { arguments = '{"order": 1, "order": 2' },
            {},
        ]
        usage = { input_tokens = 10, output_tokens = 5 }
        delay_ms = 3
        fail = { status = 500, times = 2 }
        finish_reason = "length"
        [[reply]]
        fail = { status = 429 }
    """
    first = Reply(
        text="A",
        calls=(
            RawCall(id="c1", name="lookup", arguments='{"order":7,"tags":["ä",{"x":1.5}]}'),
            RawCall(arguments='{"order": 1, "order": 2'),
            RawCall(),
        ),
        usage=Usage(input_tokens=10, output_tokens=5),
        delay_ms=3,
        fail=Fail(status=500, times=2),
        finish=FinishReason.LENGTH,
    )
    found = read(tmp_path, text)

    assert tmp_path / "sent.jsonl" == found.record
    assert first == found.replies[0]
    assert Fail(status=429, times=1) == found.replies[1].fail


def test_a_reply_with_calls_stops_for_them(tmp_path: Path) -> None:
    assert FinishReason.TOOL_CALLS is read(tmp_path, '[[reply]]\ntool_calls = [{ name = "a" }]').replies[0].finish


def test_a_record_may_lie_elsewhere(tmp_path: Path) -> None:
    assert Path("/tmp/x.jsonl") == read(tmp_path, 'record = "/tmp/x.jsonl"\n[[reply]]').record


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "missing key `reply`"),
        ("reply = []", "there is no reply"),
        ('record = ""\n[[reply]]', "record names no file"),
        ("[[reply]]\ntext = a\n", "line 2: not valid TOML"),
        ("[[reply]]\ntext = 'a", "not valid TOML: it ends too early"),
        ("replies = 1\n[[reply]]", "unknown key `replies`"),
        ("[[reply]]\n[[reply]]\ntxet = 'a'", "reply 2: unknown key `txet`"),
        ("[[reply]]\ntext = 7", "reply 1 text: Expected `str`, got `int`"),
        ("[[reply]]\ntool_calls = [{}, { nmae = 'a' }]", "reply 1 tool_calls 2: unknown key `nmae`"),
        (
            "[[reply]]\ntool_calls = [{ arguments = 7 }]",
            "reply 1 tool_calls 1 arguments: Expected `str | object`, got `int`",
        ),
        (
            "[[reply]]\ntool_calls = [{ arguments = { a = nan } }]",
            "reply 1 tool_calls 1 arguments: not a finite number",
        ),
        (
            "[[reply]]\ntool_calls = [{ arguments = { a = 1999-01-01 } }]",
            "reply 1 tool_calls 1 arguments: not a JSON value",
        ),
        ("[[reply]]\nfinish_reason = 'secret'", "reply 1 finish_reason: not one of the words that are possible"),
        ("[[reply]]\nfail = { status = 200 }", "reply 1 fail status: Expected `int` >= 300"),
        ("[[reply]]\nfail = { times = 1 }", "reply 1 fail: missing key `status`"),
        ("[[reply]]\nfail = { status = 500, times = -1 }", "reply 1 fail times: Expected `int` >= 0"),
        ("[[reply]]\nusage = { input_tokens = true }", "reply 1 usage input_tokens: Expected `int`, got `bool`"),
        ("[[reply]]\ndelay_ms = 1.5", "reply 1 delay_ms: Expected `int`, got `float`"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, text: str, expected: str) -> None:
    assert expected == problem(tmp_path, text)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    for path, cause in ((tmp_path / "absent.toml", "FileNotFoundError"), (tmp_path, "IsADirectoryError")):
        with pytest.raises(ScriptError, match=cause):
            check_script(path)


def test_what_is_no_text_or_too_long_is_told(tmp_path: Path) -> None:
    path = tmp_path / "script.toml"
    path.write_bytes(b"[[reply]]\ntext = '\xff'")
    with pytest.raises(ScriptError, match="not UTF-8"):
        check_script(path)

    path.write_bytes(b"#" * (4 * 1024 * 1024 + 1))
    with pytest.raises(ScriptError, match="longer than 4194304 bytes"):
        check_script(path)


def test_nesting_without_end_is_told(tmp_path: Path) -> None:
    assert "nested too deeply" == problem(tmp_path, "a = " + "[" * 10_000)
