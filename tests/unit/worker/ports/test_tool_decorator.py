import functools
import importlib
import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from codec.facts import ToolFacts
from codec.vocabulary import DeclaredClass, ToolEffect
from tests.support import example_tools
from worker.ports.tool_decorator import ToolDeclarationError, tool, tools_of
from worker.ports.toolbox import RegisteredTool, ToolCallInfo

ORDER: dict[str, Any] = {"type": "object", "properties": {"order": {"type": "integer"}}}


def lookup(order: int) -> str:
    """Look up one order.

    And more.
    """
    return str(order)


def fresh() -> Callable[..., str]:
    """A function like `lookup` that no other test has marked."""

    def lookup(order: int) -> str:
        """Look up one order.

        And more.
        """
        return str(order)

    return lookup


def declared(function: Callable[..., Any], **options: Any) -> RegisteredTool:
    (found,) = tools_of({"it": tool(**options)(function)})
    return found


def refused(function: Callable[..., Any] | None = None, **options: Any) -> ToolDeclarationError:
    options.setdefault("parameters", ORDER)
    with pytest.raises(ToolDeclarationError) as caught:
        declared(fresh() if function is None else function, **options)
    return caught.value


# --- What is declared ---------------------------------------------------------------------------------------


def test_undeclared_options_are_the_strictest_or_the_least() -> None:
    expected = ToolFacts(
        name="lookup",
        description="Look up one order.",
        parameters='{"type":"object","properties":{}}',
        effect=ToolEffect.READ_ONLY,
        data_class=DeclaredClass.SECRET_ADJACENT,
        group="general",
        timeout_ms=60_000,
    )

    assert expected == declared(fresh()).facts


def test_all_options_reach_the_facts() -> None:
    found = declared(
        lambda **given: "",
        name="look-up_1",
        description="  Other words.\n",
        parameters={"type": "object", "properties": {"order": {}, "url": {}}},
        effect="idempotent_write",
        data_class="source_code",
        group="orders",
        requires_admin=True,
        requires_approval=True,
        preview=lambda order, url, *, call: [],
        egress="host",
        timeout_s=0.5,
    )
    expected = ToolFacts(
        name="look-up_1",
        description="Other words.",
        parameters='{"type":"object","properties":{"order":{},"url":{}}}',
        effect=ToolEffect.IDEMPOTENT_WRITE,
        data_class=DeclaredClass.SOURCE_CODE,
        group="orders",
        requires_admin=True,
        requires_approval=True,
        preview=True,
        egress="host",
        timeout_ms=500,
    )

    assert expected == found.facts
    assert found.preview_wants_call
    assert not found.wants_call


def test_a_function_stays_what_it_was() -> None:
    function = fresh()

    assert function is tool(parameters=ORDER)(function)
    assert "7" == function(7)


def test_a_function_without_a_docstring_has_an_empty_description() -> None:
    def bare() -> None: ...

    assert "" == declared(bare).facts.description


def test_a_keyword_only_call_is_noticed() -> None:
    def wants(*, call: ToolCallInfo) -> str:
        return call.key

    assert declared(wants).wants_call


@pytest.mark.parametrize("zone", ["local", "private_hosted", "external_eu", "external_global"])
def test_every_zone_can_be_declared(zone: str) -> None:
    assert zone == declared(fresh(), egress=zone).facts.egress


def test_an_input_schema_becomes_text() -> None:
    schema = {"type": "object", "properties": {"order": {"type": "integer"}}}

    found = declared(fresh(), input_schema=schema).facts.input_schema

    assert found is not None
    assert schema == json.loads(found)


# --- What is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "look up", "ä", "a" * 65, "a.b", "a\n"])
def test_a_bad_name_is_refused(name: str) -> None:
    assert "a name is 1 to 64 letters, digits, _ or -" == refused(name=name).problem


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"effect": "write"}, "effect is not one of read_only, idempotent_write, non_idempotent_write"),
        ({"effect": []}, "effect is not one of read_only, idempotent_write, non_idempotent_write"),
        ({"data_class": "unreadable"}, "data_class unreadable cannot be declared"),
        ({"egress": "mars"}, "egress is not host or one of local, private_hosted, external_eu, external_global"),
        ({"egress": "host"}, "egress host needs a property named url in parameters"),
        ({"timeout_s": 0}, "timeout_s is not between 0.001 and 86400"),
        ({"timeout_s": float("inf")}, "timeout_s is not between 0.001 and 86400"),
        ({"timeout_s": float("nan")}, "timeout_s is not between 0.001 and 86400"),
        ({"timeout_s": True}, "timeout_s is not a number"),
        ({"timeout_s": "60"}, "timeout_s is not a number"),
        ({"group": None}, "group is not text"),
        ({"parameters": {"type": "array"}}, "parameters is not a JSON Schema of an object"),
        ({"parameters": []}, "parameters is not a JSON Schema of an object"),
        ({"parameters": {"type": "object", "properties": []}}, "parameters has properties that are no object"),
        ({"parameters": {"type": "object", "properties": {1: {}}}}, "parameters has properties that are no object"),
        (
            {"parameters": {"type": "object", "properties": {"call": {}}}},
            "parameters has a property named call, which is ours",
        ),
        ({"parameters": {"type": "object", "default": {1}}}, "parameters is not JSON: not a JSON value"),
        ({"parameters": {"type": "object", "maximum": float("nan")}}, "parameters is not JSON: not a finite number"),
        (
            {"input_schema": {"type": "object", "properties": {"call": {}}}},
            "input_schema has a property named call, which is ours",
        ),
        ({"input_schema": {"type": "object"}}, "input_schema asks for nothing"),
        (
            {"input_schema": {"type": "object", "properties": {"other": {}}}},
            "its function does not take the property 'other'",
        ),
        ({"preview": lambda: []}, "its preview does not take the property 'order'"),
        ({"preview": lambda *order: []}, "its preview has parameters that cannot be given by name"),
        ({"preview": "lines"}, "its preview is a generator or cannot be called"),
    ],
)
def test_a_bad_option_is_refused(options: dict[str, Any], problem: str) -> None:
    found = refused(**options)

    assert problem == found.problem
    assert f"tool 'lookup': {problem}" == str(found)


def test_an_unknown_class_is_refused() -> None:
    assert refused(data_class="secret").problem.startswith("data_class is not one of public_content, ")


@pytest.mark.parametrize("options", [{"requires_approval": True}, {"effect": "idempotent_write"}])
def test_a_tool_asks_for_approval_or_for_input_but_not_for_both(options: dict[str, Any]) -> None:
    found = refused(input_schema=ORDER, **options)

    assert "asks a person for input, so it can neither write nor require approval" == found.problem


def test_parameters_that_have_no_name_are_refused() -> None:
    def positional(order: int, /) -> None: ...
    def variadic(*order: int) -> None: ...

    for function in (positional, variadic):
        assert "its function has parameters that cannot be given by name" == refused(function).problem


def test_a_call_that_can_be_given_by_position_is_refused() -> None:
    def takes(order: int, call: ToolCallInfo) -> None: ...

    assert "call is not keyword-only in its function" == refused(takes).problem


def test_generators_are_refused() -> None:
    def lines(order: int) -> Iterator[str]:
        yield ""

    assert "its function is a generator or cannot be called" == refused(lines).problem
    assert "its preview is a generator or cannot be called" == refused(preview=lines).problem


def test_what_is_no_function_is_refused() -> None:
    assert "is not a function" == refused(functools.partial(lookup, 1), name="lookup").problem


def test_no_value_of_a_declaration_is_in_its_error() -> None:
    marker = "planted-marker"

    for options in ({"effect": marker}, {"data_class": marker}, {"egress": marker}, {"group": {marker}}):
        assert marker not in str(refused(**options))


# --- Collecting ---------------------------------------------------------------------------------------------


def test_tools_are_collected_in_the_order_of_their_definition() -> None:
    found = tools_of(vars(example_tools))

    assert ["lookup_order", "refund_order", "set_label", "needs_person"] == [one.facts.name for one in found]


def test_a_second_name_for_a_function_is_not_a_second_tool() -> None:
    function = tool(parameters=ORDER)(fresh())

    assert 1 == len(tools_of({"a": function, "b": function}))


def test_two_tools_of_one_name_are_refused() -> None:
    one, other = tool(parameters=ORDER)(fresh()), tool(parameters=ORDER)(fresh())

    with pytest.raises(ToolDeclarationError, match="declared twice"):
        tools_of({"a": one, "b": other})


def test_a_decorator_above_ours_is_refused() -> None:
    inner = tool(parameters=ORDER)(fresh())

    @functools.wraps(inner)
    def outer(*args: Any, **given: Any) -> str:
        return inner(*args, **given)

    with pytest.raises(ToolDeclarationError, match="a decorator stands above @tool"):
        tools_of({"outer": outer})


def test_objects_that_answer_to_every_name_are_no_tools() -> None:
    class Proxy:
        def __getattr__(self, name: str) -> str:
            return name

    assert () == tools_of({"proxy": Proxy(), "class": Proxy, "text": "x"})


def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Any:
    (tmp_path / "declaring.py").write_text(textwrap.dedent(text), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "declaring", raising=False)
    importlib.invalidate_caches()
    return importlib.import_module("declaring")


def test_a_second_definition_does_not_hide_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
        from worker.tools import tool

        @tool()
        def same(): ...

        @tool()
        def same(): ...
    """

    with pytest.raises(ToolDeclarationError, match="declared twice"):
        module(tmp_path, monkeypatch, text)


def test_a_module_can_be_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = module(tmp_path, monkeypatch, "from worker.tools import tool\n\n@tool()\ndef same(): ...\n")

    assert 1 == len(tools_of(vars(importlib.reload(loaded))))
