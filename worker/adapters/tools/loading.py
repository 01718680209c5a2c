"""Loads the modules that declare tools and refuses, once and clearly, whatever could not work later."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, Final, NoReturn

import jsonschema_rs

from worker.ports.tool_decorator import ToolDeclarationError, tools_of
from worker.ports.toolbox import RegisteredTool

__all__ = ["ToolModuleError", "load_tools"]

_UNKNOWN_SCHEMA: Final = "is not a valid JSON Schema, or refers to something outside itself"


class ToolModuleError(Exception):
    """A module named in REGATE_TOOLS cannot be imported. `cause` is the class of its error; its text is not kept."""

    def __init__(self, module: str, cause: str) -> None:
        super().__init__(f"tool module {module} cannot be imported: {cause}")
        self.module = module
        self.cause = cause


def load_tools(builtins: Iterable[RegisteredTool], modules: Sequence[str]) -> dict[str, RegisteredTool]:
    """Collect the built-ins, then the tools of each module in the order of definition, by name.

    Errors: `ToolModuleError`; `ToolDeclarationError` for a bad declaration, a schema that is none, a name used twice.
    """
    found: dict[str, RegisteredTool] = {}
    for registered in builtins:
        _add(found, registered)
    for name in modules:
        for registered in tools_of(vars(_import(name))):
            _add(found, registered)
    return found


def _add(found: dict[str, RegisteredTool], registered: RegisteredTool) -> None:
    name = registered.facts.name
    before = found.get(name)
    if before is registered:  # two modules may show the same function
        return
    if before is not None:
        raise ToolDeclarationError(name, "declared twice")
    _check_schema(name, "parameters", registered.facts.parameters)
    if registered.facts.input_schema is not None:
        _check_schema(name, "input_schema", registered.facts.input_schema)
    found[name] = registered


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ToolDeclarationError:
        raise
    # SystemExit too: a script without a main guard must not end the worker without a word.
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a module may raise anything; told by its class
        cause = type(error).__name__
    # Outside of the handler, so that the error's text and frames do not hang on ours.
    raise ToolModuleError(name, cause)


def _check_schema(tool: str, which: str, text: str) -> None:
    """Refuse what is no schema of a known draft, and every reference that leads out of it."""
    schema: Any = json.loads(text)
    try:
        jsonschema_rs.validator_for(schema, retriever=_refuse)
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
        valid = False
    else:
        valid = True
    if not valid:
        raise ToolDeclarationError(tool, f"{which} {_UNKNOWN_SCHEMA}")


def _refuse(_: str) -> NoReturn:
    raise ValueError("no reference leads out of a schema")
