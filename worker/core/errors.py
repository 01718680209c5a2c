"""Errors of the core.

CoreError
└── ProtocolError   the driver told the machine something that cannot happen now; the state is untouched
"""

from __future__ import annotations

from codec.vocabulary import Phase

__all__ = ["CoreError", "ProtocolError"]


class CoreError(Exception):
    """Base of the core's errors. They are bugs of the caller, never faults of the world."""


class ProtocolError(CoreError):
    """An event does not belong into this phase."""

    def __init__(self, phase: Phase, event: str) -> None:
        super().__init__(f"{event} is not possible in phase {phase.value}")
        self.phase = phase
        self.event = event
