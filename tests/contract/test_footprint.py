"""What an import costs: a frontend that imports `codec` loads msgspec and nothing else, and the core does no I/O."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
IO = frozenset(
    {"asyncio", "concurrent", "http", "logging", "multiprocessing", "random", "secrets", "select", "selectors"}
    | {"socket", "sqlite3", "ssl", "subprocess", "tempfile"}
)


def loaded(statement: str) -> set[str]:
    """Give the top-level modules that a statement loads in a fresh process."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    return {name.split(".")[0] for name in done.stdout.split()}


def ours(statement: str, allowed: str) -> tuple[set[str], set[str]]:
    """Give the third parties and the modules of I/O that a statement loads and the allowed libraries alone do not."""
    more = loaded(statement) - loaded(f"import {allowed}")
    return more - sys.stdlib_module_names, more & IO


def test_codec_loads_msgspec_and_nothing_else() -> None:
    """No driver, no event loop, no worker."""
    assert ({"codec"}, set()) == ours("import codec", "msgspec")


def test_the_core_loads_no_io() -> None:
    """The machine needs msgspec, a checker of schemas, and nothing that could wait, send or draw lots."""
    modules = "import worker.core.machine, worker.core.replay"

    assert ({"codec", "worker"}, set()) == ours(modules, "msgspec, jsonschema_rs")


def test_every_module_of_codec_and_core_loads_in_any_order() -> None:
    """None loads what the package as a whole does not."""
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for folder in ("codec", "worker/core")
        for path in sorted((ROOT / folder).glob("*.py"))
        if path.stem != "__init__"
    ]
    modules = f"import {', '.join(reversed(names))}"

    assert ({"codec", "worker"}, set()) == ours(modules, "msgspec, jsonschema_rs")
