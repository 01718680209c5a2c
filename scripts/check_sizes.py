#!/usr/bin/env python3
"""Refuse modules and functions that have grown too long to be read at once.

A function counts from its `def` to its last line, less its docstring; a nested one counts with the outer too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MODULE_LINES = 400
PRODUCT_FUNCTION_LINES = 40
OTHER_FUNCTION_LINES = 60  # a test or a script is read from top to bottom, so it may be longer
PRODUCT = ("codec", "worker", "bench")
OTHER = ("tests", "scripts", "examples", "bootstrap.py")
GENERATED = ("migrations", "versions")  # one migration is one script; it is never edited again

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a module (None: as long as it likes) and each of its functions may be, in lines."""

    module: int | None
    function: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offender:
    """One module or function over its limit; `line` is where it starts."""

    path: str
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}"


def offenders(root: Path) -> list[Offender]:
    """Find everything under `root` that is too long, by path and line."""
    return [found for path, limits in sources(root) for found in check_file(root, path, limits)]


def sources(root: Path) -> Iterator[tuple[Path, Limits]]:
    """Yield each file that is checked, with its limits."""
    product = Limits(module=MODULE_LINES, function=PRODUCT_FUNCTION_LINES)
    other = Limits(module=None, function=OTHER_FUNCTION_LINES)
    for names, limits in ((PRODUCT, product), (OTHER, other)):
        for name in names:
            for path in python_files(root / name):
                if not generated(path.relative_to(root)):
                    yield path, limits


def python_files(path: Path) -> list[Path]:
    """List `path` itself, or the Python files below it; nothing when it does not exist."""
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def generated(path: Path) -> bool:
    """Tell whether `path` lies in a folder migrations/versions."""
    return GENERATED in zip(path.parts, path.parts[1:], strict=False)


def check_file(root: Path, path: Path, limits: Limits) -> list[Offender]:
    """Find what is too long in one file; a file that does not parse is an offender too."""
    name = path.relative_to(root).as_posix()
    text = path.read_text(encoding="utf-8")
    try:
        tree = ast.parse(text, name)
    except SyntaxError as error:
        return [Offender(path=name, line=error.lineno or 1, problem="does not parse")]
    found = []
    lines = len(text.splitlines())
    if limits.module is not None and lines > limits.module:
        problem = f"module has {lines} lines, the limit is {limits.module}"
        found.append(Offender(path=name, line=1, problem=problem))
    for node in functions(tree):
        length = function_lines(node)
        if length > limits.function:
            problem = f"function {node.name} has {length} lines, the limit is {limits.function}"
            found.append(Offender(path=name, line=node.lineno, problem=problem))
    return found


def functions(tree: ast.Module) -> list[FunctionNode]:
    """List all functions and methods of a module in the order of their lines."""
    found = [node for node in ast.walk(tree) if isinstance(node, FunctionNode)]
    return sorted(found, key=lambda node: node.lineno)


def function_lines(node: FunctionNode) -> int:
    """Count the lines from `def` to the end without the docstring's own."""
    total = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node, clean=False) is None:
        return total
    docstring = node.body[0]
    return total - ((docstring.end_lineno or docstring.lineno) - docstring.lineno + 1)


def main(argv: list[str]) -> int:
    """Print one line per offender; return 1 if there is one."""
    root = Path(argv[0]) if argv else Path(__file__).resolve().parent.parent
    found = offenders(root)
    for offender in found:
        print(offender)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
