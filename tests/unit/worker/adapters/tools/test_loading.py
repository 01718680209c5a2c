import itertools
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from worker.adapters.tools.loading import ToolModuleError, load_tools
from worker.ports.tool_decorator import ToolDeclarationError, tool, tools_of
from worker.ports.toolbox import RegisteredTool

NUMBERS = itertools.count()
MARKER = "planted-marker"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a module under a new name and give that."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str) -> str:
        name = f"loading_sample_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
        return name

    return write


def made(**options: Any) -> RegisteredTool:
    def made(**given: object) -> None:
        """Do nothing."""

    (found,) = tools_of({"made": tool(**options)(made)})
    return found


def test_built_ins_come_first_then_modules_in_their_order(write: Callable[[str], str]) -> None:
    text = "from worker.tools import tool\n\n@tool()\ndef {0}(): ...\n\n@tool()\ndef {1}(): ...\n"
    first, second = write(text.format("zeta", "alpha")), write(text.format("beta", "gamma"))

    assert ["made", "zeta", "alpha", "beta", "gamma"] == list(load_tools([made()], [first, second]))


def test_a_package_may_show_tools_of_its_modules(write: Callable[[str], str]) -> None:
    inner = write("from worker.tools import tool\n\n@tool()\ndef shown(): ...\n")
    outer = write(f"from {inner} import shown\n")

    assert ["shown"] == list(load_tools([], [outer, inner]))


def test_a_name_used_twice_is_refused(write: Callable[[str], str]) -> None:
    name = write("from worker.tools import tool\n\n@tool()\ndef made(): ...\n")

    with pytest.raises(ToolDeclarationError, match="tool 'made': declared twice"):
        load_tools([made()], [name])


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (f"raise ValueError('{MARKER}')", "ValueError"),
        (f"raise SystemExit('{MARKER}')", "SystemExit"),
        (f"import {MARKER.replace('-', '_')}", "ModuleNotFoundError"),
        (f"'{MARKER}' = 1", "SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_by_name_and_class(
    write: Callable[[str], str], text: str, cause: str
) -> None:
    name = write(text)

    with pytest.raises(ToolModuleError) as caught:
        load_tools([], [name])

    assert f"tool module {name} cannot be imported: {cause}" == str(caught.value)
    assert "planted" not in "".join(traceback.format_exception(caught.value))


def test_a_module_that_is_not_there_is_told(write: Callable[[str], str]) -> None:
    with pytest.raises(ToolModuleError, match="tool module no_such_module cannot be imported: ModuleNotFoundError"):
        load_tools([], ["no_such_module"])


def test_a_bad_declaration_is_told_as_it_is(write: Callable[[str], str]) -> None:
    name = write("from worker.tools import tool\n\n@tool(effect='none')\ndef bad(): ...\n")

    with pytest.raises(ToolDeclarationError, match="tool 'bad': effect is not one of"):
        load_tools([], [name])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt"},
        {"pattern": "("},
        {"$ref": "http://127.0.0.1:9/other.json"},
        {"$ref": "file:///etc/hostname"},
        {"$ref": "other.json"},
        {"$ref": "#/$defs/missing"},
        {"minLength": -1},
    ],
)
def test_a_schema_that_is_none_or_refers_elsewhere_is_refused(schema: dict[str, Any]) -> None:
    parameters = {"type": "object", "properties": {"a": schema}}

    with pytest.raises(ToolDeclarationError, match="tool 'made': parameters is not a valid JSON Schema"):
        load_tools([made(parameters=parameters)], [])
    with pytest.raises(ToolDeclarationError, match="tool 'made': input_schema is not a valid JSON Schema"):
        load_tools([made(input_schema=parameters)], [])


@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
)
def test_known_drafts_and_inner_references_are_fine(draft: str) -> None:
    parameters = {
        "$schema": draft,
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/text"}},
        "$defs": {"text": {"type": "string"}},
    }

    assert ["made"] == list(load_tools([made(parameters=parameters)], []))
