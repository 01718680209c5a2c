"""Lanes: units of work of one lane wait for each other, those of different lanes never do."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Lane"]


class Lane(StrEnum):
    """Who asks. On PostgreSQL each lane has connections of its own; on SQLite one thread writes for all.

    So a thousand starts at once keep neither a heartbeat nor the loading of a run waiting.
    """

    STEPS = "steps"  # the group-commit writer
    READS = "reads"  # the batched reads of runs
    SINGLE = "single"  # everything that comes singly: starts, claims, answers, the catalogue, lists
