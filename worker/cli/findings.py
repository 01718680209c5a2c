"""What the doctor finds: a name, how bad it is, and one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "State", "fault", "ok", "warning"]


class State(StrEnum):
    """How bad a finding is: a fault stops something, a warning will or may."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. `message` holds names, uuids and numbers, never content."""

    name: str
    state: State
    message: str


def ok(name: str, message: str) -> Finding:
    """All is well."""
    return Finding(name=name, state=State.OK, message=message)


def warning(name: str, message: str) -> Finding:
    """Something will or may stop."""
    return Finding(name=name, state=State.WARNING, message=message)


def fault(name: str, message: str) -> Finding:
    """Something is stopped."""
    return Finding(name=name, state=State.FAULT, message=message)
