"""The `@tool` decorator: checks a declaration and marks the function with it. Nothing is registered by importing.

The mark is an attribute of the function, so there is no registry that modules and tests could trip over: whoever
loads a module collects its marked functions with `tools_of`.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from codec.errors import CodecError
from codec.facts import ToolFacts
from codec.text import clean_text, dump_json
from codec.vocabulary import DeclaredClass, ToolEffect, TrustZone
from worker.ports.toolbox import RegisteredTool

__all__ = ["HOST_EGRESS", "MARK", "ToolDeclarationError", "tool", "tools_of"]

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=StrEnum)

HOST_EGRESS: Final = "host"
"""The egress of a tool that reaches the host of its `url` argument, wherever that stands."""
MARK: Final = "__regate_tool__"

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what every provider accepts as a function's name
_CALL: Final = "call"
_MAX_TIMEOUT_S: Final = 86_400  # a day: longer is milliseconds given as seconds
_VARIADIC: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


class ToolDeclarationError(Exception):
    """A tool is declared in a way that cannot work. `tool` is its name, `problem` a phrase without any value."""

    def __init__(self, tool: str, problem: str) -> None:
        super().__init__(f"tool {tool[:64]!r}: {problem}")
        self.tool = tool
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    """What an author wrote, unchecked: the types are hopes until `_registered` has looked."""

    name: str | None
    description: str | None
    parameters: Mapping[str, Any]
    effect: str
    data_class: str | None
    group: str
    requires_admin: bool
    requires_approval: bool
    input_schema: Mapping[str, Any] | None
    preview: Callable[..., Any] | None
    egress: str | None
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schema:
    """A checked schema: its JSON text and the names of its properties."""

    text: str
    properties: tuple[str, ...]


def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    effect: str = ToolEffect.READ_ONLY,
    data_class: str | None = None,
    group: str = "general",
    requires_admin: bool = False,
    requires_approval: bool = False,
    input_schema: Mapping[str, Any] | None = None,
    preview: Callable[..., Any] | None = None,
    egress: str | None = None,
    timeout_s: float = 60,
) -> Callable[[F], F]:
    """Declare a function as a tool; it stays the function that it was.

    Shape: `name` and `description` default to the function's name and its docstring's first line. `parameters` is a
    JSON Schema of an object; nothing is derived from annotations. `data_class` undeclared = secret_adjacent.
    `input_schema` names the properties that a person supplies. `preview` takes the same arguments and gives lines.
    `egress` is the zone that the tool reaches, or `host` for that of its `url` argument. A keyword-only `call` of
    function or preview gets a `ToolCallInfo`. Units: `timeout_s` in seconds, fractions allowed, at most a day.
    Errors: `ToolDeclarationError`.
    """

    declared = _Declared(
        name=name,
        description=description,
        parameters={"type": "object", "properties": {}} if parameters is None else parameters,
        effect=effect,
        data_class=data_class,
        group=group,
        requires_admin=requires_admin,
        requires_approval=requires_approval,
        input_schema=input_schema,
        preview=preview,
        egress=egress,
        timeout_s=timeout_s,
    )

    def mark(function: F) -> F:
        vars(function)[MARK] = _registered(declared, function)
        return function

    return mark


def _registered(declared: _Declared, function: Callable[..., Any]) -> RegisteredTool:
    known = declared.name if declared.name is not None else str(getattr(function, "__name__", ""))
    if _NAME.fullmatch(known) is None:
        raise ToolDeclarationError(known, "a name is 1 to 64 letters, digits, _ or -")
    _check_function(known, function)
    schema = _schema(known, "parameters", declared.parameters)
    asked = None if declared.input_schema is None else _schema(known, "input_schema", declared.input_schema)
    facts = _facts(known, declared, function, schema, asked)
    if asked is not None and facts.gated:
        raise ToolDeclarationError(known, "asks a person for input, so it can neither write nor require approval")
    taken = (*schema.properties, *(() if asked is None else asked.properties))
    preview = declared.preview
    return RegisteredTool(
        facts=facts,
        function=function,
        preview=preview,
        wants_call=_wants_call(known, "function", function, taken),
        preview_wants_call=preview is not None and _wants_call(known, "preview", preview, taken),
    )


def _facts(
    known: str, declared: _Declared, function: Callable[..., Any], schema: _Schema, asked: _Schema | None
) -> ToolFacts:
    described = _first_line(function) if declared.description is None else declared.description
    return ToolFacts(
        name=known,
        description=_text(known, "description", described),
        parameters=schema.text,
        effect=_word(known, "effect", declared.effect, ToolEffect),
        data_class=_data_class(known, declared.data_class),
        group=_text(known, "group", declared.group),
        requires_admin=declared.requires_admin is not False,  # a slip of the pen restricts, it does not open
        requires_approval=declared.requires_approval is not False,
        input_schema=None if asked is None else asked.text,
        preview=declared.preview is not None,
        egress=_egress(known, declared.egress, schema),
        timeout_ms=_milliseconds(known, declared.timeout_s),
    )


def tools_of(namespace: Mapping[str, object]) -> tuple[RegisteredTool, ...]:
    """Collect the marked functions of a module's namespace in the order of their definition, each once.

    Errors: `ToolDeclarationError` for two tools of one name, and for a decorator above `@tool`: it would be bypassed.
    """
    found: dict[str, RegisteredTool] = {}
    for value in namespace.values():
        registered = _mark_of(value)
        if registered is None:
            continue
        known = registered.facts.name
        if registered.function is not value:
            raise ToolDeclarationError(known, "a decorator stands above @tool; it would be bypassed")
        if found.setdefault(known, registered) is not registered:
            raise ToolDeclarationError(known, "declared twice")
    return tuple(found.values())


def _mark_of(value: object) -> RegisteredTool | None:
    # Only a function's own attributes: a module may hold proxies whose __getattr__ answers to every name.
    marked = vars(value).get(MARK) if inspect.isfunction(value) else None
    return marked if isinstance(marked, RegisteredTool) else None


def _check_function(known: str, function: Callable[..., Any]) -> None:
    if not inspect.isfunction(function):
        raise ToolDeclarationError(known, "is not a function")
    # A second `def` of the same name hides the first one before anybody can collect both. Another line tells it from
    # the same definition that is run again by a reload.
    before = function.__globals__.get(function.__name__) if function.__qualname__ == function.__name__ else None
    if _mark_of(before) is None or not inspect.isfunction(before):
        return
    if before.__module__ == function.__module__ and _line(before) != _line(function):
        raise ToolDeclarationError(known, "declared twice")


def _line(function: Callable[..., Any]) -> int:
    return int(inspect.unwrap(function).__code__.co_firstlineno)


def _schema(known: str, which: str, schema: object) -> _Schema:
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise ToolDeclarationError(known, f"{which} is not a JSON Schema of an object")
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping) or not all(isinstance(key, str) for key in properties):
        raise ToolDeclarationError(known, f"{which} has properties that are no object")
    if which == "input_schema" and not properties:
        raise ToolDeclarationError(known, "input_schema asks for nothing")
    if _CALL in properties:
        raise ToolDeclarationError(known, f"{which} has a property named call, which is ours")
    try:
        text = dump_json(dict(schema))
    except CodecError as error:
        raise ToolDeclarationError(known, f"{which} is not JSON: {error.problem}") from None
    return _Schema(text=text, properties=tuple(properties))


def _wants_call(known: str, which: str, function: object, taken: tuple[str, ...]) -> bool:
    """Check that `function` takes all of `taken` by name; tell whether it wants `call` too."""
    if not callable(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolDeclarationError(known, f"its {which} is a generator or cannot be called")
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise ToolDeclarationError(known, f"its {which} has no signature") from None
    if any(parameter.kind in _VARIADIC for parameter in found.values()):
        raise ToolDeclarationError(known, f"its {which} has parameters that cannot be given by name")
    call = found.get(_CALL)
    if call is not None and call.kind is not inspect.Parameter.KEYWORD_ONLY:
        raise ToolDeclarationError(known, f"call is not keyword-only in its {which}")
    rest = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in found.values())
    for name in taken:
        if not rest and name not in found:
            raise ToolDeclarationError(known, f"its {which} does not take the property {name[:64]!r}")
    return call is not None


def _word(known: str, which: str, value: str, words: type[E]) -> E:
    try:
        return words(value)
    except ValueError:
        raise ToolDeclarationError(known, f"{which} is not one of {', '.join(words)}") from None


def _data_class(known: str, declared: str | None) -> DeclaredClass:
    if declared is None:
        return DeclaredClass.SECRET_ADJACENT
    found = _word(known, "data_class", declared, DeclaredClass)
    if found is DeclaredClass.UNREADABLE:
        raise ToolDeclarationError(known, "data_class unreadable cannot be declared")
    return found


def _egress(known: str, egress: str | None, schema: _Schema) -> str | None:
    if egress is None:
        return None
    if egress == HOST_EGRESS:
        if "url" not in schema.properties:
            raise ToolDeclarationError(known, "egress host needs a property named url in parameters")
        return HOST_EGRESS
    try:
        return TrustZone(egress).value
    except ValueError:
        raise ToolDeclarationError(known, f"egress is not host or one of {', '.join(TrustZone)}") from None


def _milliseconds(known: str, seconds: object) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ToolDeclarationError(known, "timeout_s is not a number")
    if not math.isfinite(seconds) or not 0.001 <= seconds <= _MAX_TIMEOUT_S:
        raise ToolDeclarationError(known, f"timeout_s is not between 0.001 and {_MAX_TIMEOUT_S}")
    return round(seconds * 1000)


def _text(known: str, which: str, value: object) -> str:
    if not isinstance(value, str):
        raise ToolDeclarationError(known, f"{which} is not text")
    try:
        return clean_text(value).strip()
    except CodecError as error:
        raise ToolDeclarationError(known, f"{which} is {error.problem}") from None


def _first_line(function: Callable[..., Any]) -> str:
    lines = (inspect.getdoc(function) or "").strip().splitlines()
    return lines[0] if lines else ""
