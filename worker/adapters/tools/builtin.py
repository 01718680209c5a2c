"""The tools that every installation has: reading files below one folder, HTTP to listed hosts, asking a person."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from codec.vocabulary import TrustZone
from worker.adapters.tools.http import HttpSender, http_tools
from worker.adapters.tools.results import MAX_RESULT_BYTES
from worker.ports.tool_decorator import tool, tools_of
from worker.ports.toolbox import RegisteredTool

__all__ = ["builtin_tools", "read_below"]

_OUTSIDE: Final = "Refused: the path leads out of the folder."
_ABSENT: Final = "There is no such file."
_NO_FILE: Final = "Refused: this is no regular file."


def builtin_tools(
    *, files_root: Path | None, egress: Callable[[], Awaitable[Mapping[str, TrustZone]]]
) -> tuple[RegisteredTool, ...]:
    """Make the built-in tools. Without `files_root` there is no `read_file`."""
    files = () if files_root is None else _file_tools(files_root)
    return (*files, *http_tools(HttpSender(egress)), *tools_of({"ask_person": ask_person}))


@tool(
    group="general",
    # What a person writes here is no more classified than what the caller writes.
    data_class="editor_content",
    parameters={
        "type": "object",
        "properties": {"question": {"type": "string", "minLength": 1, "description": "What you want to know."}},
        "required": ["question"],
    },
    input_schema={
        "type": "object",
        "properties": {"answer": {"type": "string", "minLength": 1, "title": "Answer"}},
        "required": ["answer"],
        "additionalProperties": False,
    },
)
def ask_person(question: str, answer: str) -> str:
    """Ask a person a question and wait for the answer."""
    del question  # it was shown; only the answer is new
    return answer


def _file_tools(root: Path) -> tuple[RegisteredTool, ...]:
    # No data_class: nobody knows what lies in a folder, and undeclared is the strictest.
    @tool(
        group="files",
        parameters={
            "type": "object",
            "properties": {"path": {"type": "string", "minLength": 1, "description": "Relative to the folder."}},
            "required": ["path"],
            "additionalProperties": False,
        },
    )
    def read_file(path: str) -> str:
        """Read a text file of the files folder."""
        return read_below(root, path)

    return tools_of({"read_file": read_file})


def read_below(root: Path, path: str) -> str:
    """Read a file below `root` as UTF-8, or say in one line why not; never names the path.

    Shape: one byte more than a result may have is read of a longer file, so that it is cut and marked as such.
    Symbolic links that stay inside are followed. Errors: OSError for what the disk does.
    """
    if "\0" in path or ".." in Path(path).parts or Path(path).is_absolute():
        return _OUTSIDE
    base = root.resolve()
    try:
        inside = (base / path).resolve().relative_to(base)
    except ValueError:
        return _OUTSIDE
    except (OSError, RuntimeError):  # a name that is too long, a link that leads to itself
        return _ABSENT
    try:
        opened = _open_below(base, inside)
    except OSError:
        # Also a link that was put there since: the path above has none left.
        return _ABSENT
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            return _NO_FILE
        return _read(opened).decode(errors="replace")
    finally:
        os.close(opened)


def _open_below(base: Path, inside: Path) -> int:
    """Open step by step from the folder's descriptor, so that no part can be exchanged for a link in between."""
    folder = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in inside.parts[:-1]:
        try:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    try:
        # Not blocking: a pipe without a writer would hold the thread for ever.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(inside.name or ".", flags, dir_fd=folder)
    finally:
        os.close(folder)


def _read(opened: int) -> bytes:
    found = bytearray()
    while len(found) <= MAX_RESULT_BYTES:
        piece = os.read(opened, MAX_RESULT_BYTES + 1 - len(found))
        if not piece:
            break
        found += piece
    return bytes(found)
