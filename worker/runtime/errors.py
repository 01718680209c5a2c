"""Errors of the runtime. Each carries a stable `code`; none carries content.

RuntimeFault
├── NotFoundError      no such run, record or tool, or not yours
├── ForbiddenError     the actor lacks a right
├── InvalidError       the input is wrong; `paths` name the places
├── ConflictError      already decided, stale question, not waiting, not blocked, other body under the same key
└── UnavailableError   what is needed cannot be read or stored now
"""

from __future__ import annotations

__all__ = [
    "ConflictError",
    "ForbiddenError",
    "InvalidError",
    "NotFoundError",
    "RuntimeFault",
    "UnavailableError",
]


class RuntimeFault(Exception):
    """Base. `code` is a stable word; the message is for people."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        paths: tuple[str, ...] = (),
        uuid: str | None = None,
        decided_by: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.paths = paths
        self.uuid = uuid
        self.decided_by = decided_by


class NotFoundError(RuntimeFault):
    """There is no such thing, or it is not the actor's to see."""


class ForbiddenError(RuntimeFault):
    """The actor may not do that."""


class InvalidError(RuntimeFault):
    """The input is malformed or does not fit."""


class ConflictError(RuntimeFault):
    """The run is not in a state for this any more."""


class UnavailableError(RuntimeFault):
    """A part that is needed cannot be used now; nothing was done."""
