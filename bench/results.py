"""Reads results: the figures of a case over the rounds, and ratios between two cases of the same round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Results", "cell"]


class Results:
    """What one run of the benchmark found. A case that did not run gives no values."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self._found: dict[tuple[str, str, int, int], list[dict[str, Any]]] = {
            (case["name"], case["engine"], case["concurrency"], case["workers"]): case["found"]
            for case in document["cases"]
        }

    @property
    def engines(self) -> list[str]:
        """The engines that were measured, in order."""
        return list(dict.fromkeys(engine for _, engine, _, _ in self._found))

    def names(self) -> list[str]:
        """The names of cases that were asked for, in order."""
        return list(dict.fromkeys(name for name, _, _, _ in self._found))

    def values(self, name: str, engine: str, field: str, concurrency: int = 50, workers: int = 1) -> list[float]:
        """Give a field's value in each round that has it."""
        found = self._found.get((name, engine, concurrency, workers), [])
        return [one[field] for one in found if field in one]

    def words(self, name: str, field: str) -> str:
        """Give a text that a case told of itself, "" if it never ran."""
        told = (one[field] for key, found in self._found.items() if key[0] == name for one in found if field in one)
        return next(iter(told), "")

    def ratios(
        self, name: str, other: str, engine: str, field: str = "runs_per_s", concurrency: int = 50
    ) -> list[float]:
        """Divide one case's field by another's, round by round."""
        pairs = zip(
            self._found.get((name, engine, concurrency, 1), []),
            self._found.get((other, engine, concurrency, 1), []),
            strict=False,
        )
        return [one[field] / two[field] for one, two in pairs if field in one and field in two]

    def errors(self) -> list[str]:
        """Say what did not run, and why; the same only once."""
        told = {
            f"{name} on {engine} at {concurrency}: {one['error']}": None
            for (name, engine, concurrency, _), found in self._found.items()
            for one in found
            if "error" in one
        }
        return list(told)


def cell(values: Sequence[float], form: str = ",.0f", unit: str = "") -> str:
    """Show a median with its spread, as in `152 (140–161)`; a single value alone; nothing as a dash."""
    if not values:
        return "–"
    median, least, most = (format(f(values), form) for f in (statistics.median, min, max))
    return median + unit if least == most else f"{median}{unit} ({least}–{most})"
