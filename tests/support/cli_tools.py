"""A tool for tests of the command line: it fails after it began, so that nobody knows what became of it."""

from __future__ import annotations

from worker.tools import tool


@tool(effect="non_idempotent_write", data_class="editor_content", group="tests")
def fragile_write() -> str:
    """Begin something, and fail."""
    raise RuntimeError("marker-of-an-exception")
