"""What reached the world outside, and when: written at the moment at which nobody can take it back any more.

The outside does not forget what a process did just before it died.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

from codec.commands import Permit
from codec.facts import ToolFacts
from worker.ports.models import ModelRequest
from worker.ports.toolbox import ToolCallInfo

__all__ = ["Execution", "Ledger", "Send", "Trace", "marked"]

_MARK: Final = re.compile(r"‹([a-z_]+) ([a-z-]+)")


def marked(kind: str, identifier: str, edition: int = 1) -> str:
    """Write a source's text so that it is recognised wherever it turns up."""
    return f"‹{kind} {identifier} {edition}› says what it says."


@dataclass(slots=True, kw_only=True)
class Send:
    """One request that left a process. `tokens` is a number of its own, None until it was answered."""

    run: str
    key: str
    permit: Permit
    carries: frozenset[tuple[str, str]]
    process: str
    at: float
    tokens: int | None = None
    flying: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One execution of a tool that happened. `ticket` tells the call from every other, whatever its key is."""

    run: str
    call: str
    key: str
    tool: ToolFacts
    ticket: int
    arguments: str
    process: str
    at: float


@dataclass(slots=True)
class Ledger:
    """Everything outside of the database that is known of all runs."""

    sends: list[Send] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    sends_of: defaultdict[str, list[Send]] = field(default_factory=lambda: defaultdict(list))
    executions_of: defaultdict[int, list[Execution]] = field(default_factory=lambda: defaultdict(list))
    accepted: list[str] = field(default_factory=list)
    """Uuids of runs whose starter was told that they are stored."""
    of_key: dict[tuple[str, str], str] = field(default_factory=dict)
    """What a starter was told first for each of its idempotency keys."""

    def sent(self, process: str, at: float, permit: Permit, request: ModelRequest) -> Send:
        """Write down what leaves now."""
        texts = (found for message in request.messages for found in _MARK.findall(message.content))
        send = Send(
            run=request.run,
            key=request.key,
            permit=permit,
            carries=frozenset((kind, name) for kind, name in texts),
            process=process,
            at=at,
        )
        self.sends.append(send)
        self.sends_of[send.run].append(send)
        return send

    def flying(self, process: str, send: Send) -> int:
        """Count what a process has in the air to the same provider, this send included."""
        provider = send.permit.target.provider
        mine = (s for s in self.sends if s.flying and s.process == process)
        return sum(s.permit.target.provider == provider for s in mine)

    def executed(
        self, process: str, at: float, tool: ToolFacts, ticket: int, arguments: str, info: ToolCallInfo
    ) -> Execution:
        """Write down what happens now."""
        execution = Execution(
            run=info.run,
            call=info.call_id,
            key=info.key,
            tool=tool,
            ticket=ticket,
            arguments=arguments,
            process=process,
            at=at,
        )
        self.executions.append(execution)
        self.executions_of[ticket].append(execution)
        return execution


class Trace:
    """Everything that happened, in order. Holds no sealed bytes, so equal schedules have equal traces."""

    def __init__(self) -> None:
        self._lines: list[tuple[float, str, str, dict[str, Any]]] = []

    def note(self, at: float, who: str, what: str, fields: dict[str, Any]) -> None:
        """Write one line down."""
        self._lines.append((at, who, what, fields))

    def digest(self) -> str:
        """Give a hash of everything."""
        found = hashlib.sha256()
        for line in self._lines:
            found.update(repr(line).encode())
        return found.hexdigest()

    def last(self, lines: int | None = None) -> list[str]:
        """Write the last lines for a person, or all."""
        wanted = self._lines if lines is None else self._lines[-lines:]
        return [_written(*line) for line in wanted]

    def __len__(self) -> int:
        return len(self._lines)


def _written(at: float, who: str, what: str, fields: dict[str, Any]) -> str:
    told = " ".join(f"{name}={value}" for name, value in fields.items())
    return f"{at:9.4f}  {who:<9} {what:<22} {told}"
