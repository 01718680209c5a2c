"""The result of a step, and the draft that transitions fill while one is computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from codec.commands import Command, Finish
from codec.decisions import Decision, ToolDenial
from codec.events import Event
from codec.suspended import SuspendedRunState
from codec.vocabulary import Phase, TerminationReason, Verdict

__all__ = ["Draft", "Step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one event led to.

    Shape: `commands` are performed only after the step is committed; `decisions` and `denials` are recorded with it;
    `stale` means that the event came too late and changed nothing.
    """

    state: SuspendedRunState
    commands: tuple[Command, ...] = ()
    decisions: tuple[Decision, ...] = ()
    denials: tuple[ToolDenial, ...] = ()
    stale: bool = False


@dataclass(slots=True)
class Draft:
    """A step in the making; lives inside one call of `step` and nowhere else."""

    state: SuspendedRunState
    event: Event
    commands: list[Command] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    denials: list[ToolDenial] = field(default_factory=list)
    stale: bool = False

    def put(self, **changes: Any) -> None:
        """Change fields of the state."""
        self.state = msgspec.structs.replace(self.state, **changes)

    def count(self, **changes: int) -> None:
        """Change counters of the state."""
        self.put(counters=msgspec.structs.replace(self.state.counters, **changes))

    def decided(self, decision: Decision) -> Decision:
        """Record a decision; a refusal or would-be refusal unlike the last one of its kind is marked fresh."""
        slot = f"gate:{decision.tool or ''}"
        before = next((n for n in self.state.noted if n.startswith(f"{slot}|")), None)
        mark = f"{slot}|{_gist(decision)}"
        if mark != before:
            self.put(noted=(*(n for n in self.state.noted if n != before), mark))
        decision = msgspec.structs.replace(decision, fresh=mark != before and decision.verdict is not Verdict.PERMITTED)
        self.decisions.append(decision)
        return decision

    def denied(self, denial: ToolDenial | None) -> None:
        """Record a tool's denial once per run and reason."""
        if denial is None:
            return
        mark = f"tool:{denial.tool}|{denial.reason}|{denial.observed}|{denial.zone}"
        if mark not in self.state.noted:
            self.put(noted=(*self.state.noted, mark))
            self.denials.append(denial)

    def finish(self, reason: TerminationReason) -> None:
        """End the run. Calls stay as they are, so that a requeued run knows what was open."""
        self.put(phase=Phase.DONE, reason=reason, question=None, blocked=None, send=None)
        self.commands.append(Finish(reason=reason))

    def late(self) -> None:
        """Mark the event as one that changes nothing any more."""
        self.stale = True

    def step(self) -> Step:
        """Close the draft."""
        return Step(
            state=self.state,
            commands=tuple(self.commands),
            decisions=tuple(self.decisions),
            denials=tuple(self.denials),
            stale=self.stale,
        )


def _gist(decision: Decision) -> str:
    parts = (decision.verdict, decision.source, decision.data_class, decision.zone, decision.provider, decision.mode)
    return "|".join("" if part is None else str(part) for part in parts)
