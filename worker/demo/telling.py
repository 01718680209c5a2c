"""How the demonstration speaks: numbered steps, the commands that are run, what was found, and what was checked."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console
from rich.text import Text

__all__ = ["StepError", "Teller"]

_WIDTH: Final = 100


class StepError(Exception):
    """Something did not happen as it is told."""


class Teller:
    """Tells one story. `check` is both a sentence for the reader and a condition that must hold."""

    def __init__(self) -> None:
        width = None if sys.stdout.isatty() else _WIDTH
        self._console = Console(width=width, markup=False, highlight=False, emoji=False)
        self._number = 0
        self.title = ""

    def begin(self, title: str, *lines: str) -> None:
        """Say what this is about."""
        self._console.print(Text(title, "bold"))
        for line in lines:
            self._console.print(Text(line, "dim"))

    def step(self, title: str) -> None:
        """Begin a step."""
        self._number += 1
        self.title = f"{self._number}. {title}"
        self._console.print(Text.assemble("\n", (f"{self._number}  ", "bold cyan"), (title, "bold")))

    def command(self, *words: str) -> None:
        """Show a command as a person would type it."""
        self._console.print(Text(f"   $ regate {' '.join(words)}", "cyan"), soft_wrap=True)

    def say(self, line: str, style: str = "") -> None:
        """Show something that was found."""
        self._console.print(Text(f"     {line}", style), soft_wrap=True)

    def check(self, told: str, holds: bool, found: object = None) -> None:
        """Tell something that must be so. Errors: `StepError` when it is not."""
        if not holds:
            raise StepError(told if found is None else f"{told}; found: {found}")
        self._console.print(Text.assemble(("   ✓ ", "green"), told), soft_wrap=True)

    def end(self, line: str, style: str) -> None:
        """Say how it went."""
        self._console.print(Text(f"\n{line}", style))
