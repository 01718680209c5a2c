import asyncio
import itertools
import json
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from codec.vocabulary import FailureClass, TrustZone
from tests.support import example_tools
from worker.adapters.tools.toolbox import PythonToolbox
from worker.ports.tool_decorator import tool
from worker.ports.toolbox import NotExecuted, Toolbox, ToolCallInfo, ToolFault, ToolResult

INFO = ToolCallInfo(run="run-1", call_id="c1", key="key-1", actor="ada")
MARKER = "planted-marker"
NUMBERS = itertools.count()

Make = Callable[..., PythonToolbox]


async def no_egress() -> Mapping[str, TrustZone]:
    return {}


@pytest.fixture
def faults() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, faults: list[tuple[str, str]]) -> Make:
    """Make a toolbox that holds this function as `it`, declared with these options."""

    def make(function: Callable[..., Any], *, max_threads: int = 4, **options: Any) -> PythonToolbox:
        module = ModuleType(f"toolbox_sample_{next(NUMBERS)}")
        vars(module)["it"] = tool(name="it", **options)(function)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return PythonToolbox(
            [module.__name__],
            files_root=None,
            egress=no_egress,
            on_fault=lambda name, cause: faults.append((name, cause)),
            max_threads=max_threads,
        )

    return make


async def call(toolbox: Toolbox, arguments: str = "{}", timeout_ms: int = 10_000) -> str:
    return await toolbox.call("it", arguments, INFO, timeout_ms)


async def fault(toolbox: Toolbox, arguments: str = "{}", timeout_ms: int = 10_000) -> FailureClass:
    """The class of the failure, after a look at whether the exception carries anything else."""
    with pytest.raises(ToolFault) as caught:
        await call(toolbox, arguments, timeout_ms)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert MARKER not in "".join(traceback.format_exception(caught.value))
    return caught.value.failure


# --- Calling ------------------------------------------------------------------------------------------------


def test_built_ins_are_there(tmp_path: Path) -> None:
    without = PythonToolbox([], files_root=None, egress=no_egress)
    with_files = PythonToolbox([], files_root=tmp_path, egress=no_egress)

    assert ["http_get", "post_json", "ask_person"] == [facts.name for facts in without.facts()]
    assert "read_file" in [facts.name for facts in with_files.facts()]


async def test_an_async_tool_runs_on_the_loop(make: Make) -> None:
    loops: list[object] = []

    async def it(order: int) -> str:
        loops.append(asyncio.get_running_loop())
        return f"order {order}"

    assert "order 7" == await call(make(it), '{"order": 7}')
    assert [asyncio.get_running_loop()] == loops


async def test_a_sync_tool_runs_in_a_thread(make: Make) -> None:
    def it() -> ToolResult:
        return ToolResult(str(threading.current_thread() is threading.main_thread()))

    assert "False" == await call(make(it))


async def test_a_sync_tool_may_give_an_awaitable(make: Make) -> None:
    async def later() -> str:
        return "later"

    def it() -> Awaitable[str]:
        return later()

    assert "later" == await call(make(it))


@pytest.mark.parametrize(("value", "text"), [(None, ""), ("x", "x"), ({"a": 1}, '{"a":1}'), (ToolResult("y"), "y")])
async def test_results_become_text(make: Make, value: object, text: str) -> None:
    def it() -> object:
        return value

    assert text == await call(make(it))


async def test_results_are_bounded(make: Make) -> None:
    def it() -> str:
        return "ä" * 1_000_000

    assert 50_000 >= len((await call(make(it))).encode())


async def test_the_call_is_given_only_to_who_wants_it(make: Make) -> None:
    def wants(*, call: ToolCallInfo) -> str:
        return f"{call.run} {call.call_id} {call.key} {call.actor}"

    def takes_anything(**given: object) -> str:
        return str(sorted(given))

    assert "run-1 c1 key-1 ada" == await call(make(wants))
    assert "['a']" == await call(make(takes_anything), '{"a": 1}')


async def test_integers_survive_exactly(make: Make) -> None:
    def it(number: int) -> dict[str, int]:
        return {"number": number}

    assert f'{{"number":{2**256}}}' == await call(make(it), f'{{"number": {2**256}}}')


# --- Calls that never reach the tool ------------------------------------------------------------------------


async def test_an_unknown_tool_executes_nothing(make: Make) -> None:
    with pytest.raises(ToolFault) as caught:
        await make(lambda: None).call("other", "{}", INFO, 1000)

    assert caught.value.failure is FailureClass.NOT_EXECUTED


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "[]",
        "{",
        f'{{"{MARKER}": 1}}',
        '{"order": NaN}',
        '{"order": 1, "order": 2}',
        "{}",
        '{"order": 1, "call": {"key": "forged"}}',
    ],
)
async def test_arguments_that_do_not_fit_execute_nothing(make: Make, arguments: str) -> None:
    ran: list[int] = []

    def it(order: int, *, call: ToolCallInfo) -> None:
        ran.append(order)

    assert FailureClass.NOT_EXECUTED == await fault(make(it), arguments)
    assert [] == ran


async def test_nobody_passes_for_the_runtime(make: Make) -> None:
    def it(**given: object) -> str:
        return str(given)

    assert FailureClass.NOT_EXECUTED == await fault(make(it), '{"call": {"key": "forged"}}')


# --- Failures -----------------------------------------------------------------------------------------------


class CustomError(Exception):
    pass


def raising(error: BaseException, *, asynchronous: bool) -> Callable[[], Any]:
    def sync() -> None:
        raise error

    async def coroutine() -> None:
        raise error

    return coroutine if asynchronous else sync


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        CustomError(MARKER),
        TimeoutError(MARKER),
        ToolFault(FailureClass.TIMEOUT),
        SystemExit(MARKER),
        KeyboardInterrupt(MARKER),
        asyncio.CancelledError(MARKER),
    ],
)
async def test_whatever_a_tool_raises_is_told_by_its_class(
    make: Make, faults: list[tuple[str, str]], error: BaseException, asynchronous: bool
) -> None:
    assert FailureClass.RAISED == await fault(make(raising(error, asynchronous=asynchronous)))
    assert [("it", type(error).__name__)] == faults


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_not_executed_is_the_tools_own_word(
    make: Make, faults: list[tuple[str, str]], asynchronous: bool
) -> None:
    assert FailureClass.NOT_EXECUTED == await fault(make(raising(NotExecuted(MARKER), asynchronous=asynchronous)))
    assert [("it", "NotExecuted")] == faults


@pytest.mark.parametrize("value", [7, [MARKER], b"x", {"a": float("inf")}, {MARKER: object()}])
async def test_a_result_of_another_kind_is_a_failure(make: Make, faults: list[tuple[str, str]], value: object) -> None:
    def it() -> object:
        return value

    assert FailureClass.RAISED == await fault(make(it))
    assert [("it", "CodecError")] == faults


async def test_a_dict_that_raises_is_a_failure(make: Make) -> None:
    class Odd(dict[str, object]):
        def items(self) -> Any:
            raise CustomError(MARKER)

    def it() -> object:
        return Odd(a=1)

    assert FailureClass.RAISED == await fault(make(it))


async def test_an_async_tool_that_takes_too_long_is_cancelled(make: Make, faults: list[tuple[str, str]]) -> None:
    ended: list[str] = []

    async def it() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    assert FailureClass.TIMEOUT == await fault(make(it), timeout_ms=10)
    assert ["cancelled"] == ended
    assert [("it", "TimeoutError")] == faults


async def test_a_tool_may_say_that_nothing_happened_when_its_time_is_over(make: Make) -> None:
    async def it() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise NotExecuted from None

    assert FailureClass.NOT_EXECUTED == await fault(make(it), timeout_ms=10)


async def test_a_tool_that_breaks_when_its_time_is_over_took_too_long(make: Make) -> None:
    async def it() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise CustomError(MARKER)

    assert FailureClass.TIMEOUT == await fault(make(it), timeout_ms=10)


async def test_a_sync_tool_that_takes_too_long_is_left_behind(make: Make) -> None:
    go_on = threading.Event()

    def it() -> None:
        go_on.wait(10)

    assert FailureClass.TIMEOUT == await fault(make(it), timeout_ms=10)
    go_on.set()


async def test_a_call_that_finds_no_free_thread_was_not_executed(make: Make) -> None:
    go_on = threading.Event()
    ran: list[str] = []

    def it() -> None:
        ran.append("ran")
        go_on.wait(10)

    toolbox = make(it, max_threads=1)

    assert FailureClass.TIMEOUT == await fault(toolbox, timeout_ms=10)
    assert FailureClass.NOT_EXECUTED == await fault(toolbox, timeout_ms=10)
    go_on.set()
    assert "" == await call(toolbox)
    assert ["ran", "ran"] == ran


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_cancelled_caller_is_cancelled(make: Make, asynchronous: bool) -> None:
    go_on, begun = threading.Event(), threading.Event()

    def sync() -> None:
        begun.set()
        go_on.wait(10)

    async def coroutine() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(call(make(coroutine if asynchronous else sync)))
    assert await asyncio.to_thread(begun.wait, 10)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()


# --- Previews -----------------------------------------------------------------------------------------------


def act(order: int) -> None:
    """Act."""


async def preview(toolbox: Toolbox, arguments: str = '{"order": 7}') -> tuple[tuple[str, ...], bool]:
    return await toolbox.preview("it", arguments, INFO)


async def test_a_preview_gives_lines(make: Make) -> None:
    def sync(order: int) -> list[str]:
        return [f"Refund   order {order}.", "Really."]

    async def coroutine(order: int, *, call: ToolCallInfo) -> list[str]:
        return [f"Refund {order} for {call.actor}."]

    assert (("Refund order 7.", "Really."), False) == await preview(make(act, preview=sync))
    assert (("Refund 7 for ada.",), False) == await preview(make(act, preview=coroutine))


@pytest.mark.parametrize("error", [CustomError(MARKER), SystemExit(MARKER), NotExecuted(MARKER)])
async def test_a_preview_that_raises_names_the_class_only(
    make: Make, faults: list[tuple[str, str]], error: BaseException
) -> None:
    def raises(order: int) -> list[str]:
        raise error

    assert ((f"The preview failed: {type(error).__name__}.",), True) == await preview(make(act, preview=raises))
    assert [] == faults


@pytest.mark.parametrize("value", [None, [], [""], [7], 7])
async def test_a_preview_without_lines_says_so(make: Make, value: object) -> None:
    def empty(order: int) -> object:
        return value

    assert (("The preview gave no lines.",), True) == await preview(make(act, preview=empty))


async def test_a_preview_is_total(make: Make) -> None:
    def lines(order: int) -> list[str]:
        return ["x"]

    toolbox = make(act, preview=lines)

    assert (("This tool has no preview.",), True) == await preview(make(act))
    assert (("This tool has no preview.",), True) == await toolbox.preview("other", "{}", INFO)
    for arguments in ("", "[]", "{}", f'{{"{MARKER}": 1}}'):
        assert (("The preview does not take these arguments.",), True) == await preview(toolbox, arguments)


# --- The example module -------------------------------------------------------------------------------------


async def test_the_example_module_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(example_tools.LEDGER, str(tmp_path / "ledger.jsonl"))
    toolbox = PythonToolbox(["tests.support.example_tools"], files_root=None, egress=no_egress)

    async def run(name: str, **arguments: object) -> str:
        return await toolbox.call(name, json.dumps(arguments), INFO, 10_000)

    assert '{"order":7,"state":"paid","total":"12.50"}' == await run("lookup_order", order=7)
    assert "Refunded order 7." == await run("refund_order", order=7)
    assert "Order 7 is labelled." == await run("set_label", order=7, label="odd")
    assert "A person decided: yes" == await run("needs_person", topic="x", decision="yes")
    with pytest.raises(ToolFault, match="not_executed"):
        await run("refund_order", order=0)
    lines, failed = await toolbox.preview("refund_order", '{"order": 7}', INFO)

    assert ("Refund order 7 in full.", False) == (lines[0], failed)
    assert 4 == len((tmp_path / "ledger.jsonl").read_bytes().splitlines())
