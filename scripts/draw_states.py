#!/usr/bin/env python3
"""Write docs/states.md from the machine's own table, so that the page cannot drift from the code.

Run it from the top folder: python -m scripts.draw_states
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from codec.vocabulary import Phase
from worker.core.machine import EVENTS, STALE, TABLE
from worker.core.transitions import start

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"

MEANING = {
    Phase.NEW: "nothing happened yet; the run has a request and no journal",
    Phase.MODEL: "a request is on its way to a model",
    Phase.TOOLS: "calls or previews are being performed",
    Phase.WAITING: "a person is asked; no worker holds the run",
    Phase.PARKED: "a failed send waits for its next try",
    Phase.DONE: "over; the journal is closed",
}

# Phase to phase, by the events that may lead there. The walk over all states compares this with what it saw.
MOVES: dict[tuple[Phase, Phase], tuple[str, ...]] = {
    (Phase.NEW, Phase.MODEL): ("RunStarted",),
    (Phase.NEW, Phase.DONE): ("RunStarted", "CancelRequested", "StateCorrupted"),
    (Phase.MODEL, Phase.TOOLS): ("ModelReplied",),
    (Phase.MODEL, Phase.WAITING): ("ModelReplied",),
    (Phase.MODEL, Phase.PARKED): ("ModelFailed",),
    (Phase.MODEL, Phase.DONE): ("RunResumed", "ModelReplied", "ModelFailed", "CancelRequested", "StateCorrupted"),
    (Phase.TOOLS, Phase.MODEL): ("RunResumed", "ToolReturned", "ToolFailed", "Previewed"),
    (Phase.TOOLS, Phase.WAITING): ("RunResumed", "ToolReturned", "ToolFailed", "Previewed"),
    (Phase.TOOLS, Phase.DONE): (
        "RunResumed",
        "ToolReturned",
        "ToolFailed",
        "Previewed",
        "CancelRequested",
        "StateCorrupted",
    ),
    (Phase.WAITING, Phase.MODEL): ("DecisionGiven", "InputGiven", "OutcomeGiven"),
    (Phase.WAITING, Phase.TOOLS): ("DecisionGiven", "InputGiven", "OutcomeGiven"),
    (Phase.WAITING, Phase.DONE): (
        "RunResumed",
        "DecisionGiven",
        "InputGiven",
        "OutcomeGiven",
        "Expired",
        "CancelRequested",
        "StateCorrupted",
    ),
    (Phase.PARKED, Phase.MODEL): ("RunResumed",),
    (Phase.PARKED, Phase.DONE): ("RunResumed", "CancelRequested", "StateCorrupted"),
}

_FROM_OUTSIDE = ("CancelRequested", "StateCorrupted")
_Transition = Callable[..., Any]


def document() -> str:
    """Give the whole page."""
    return "\n".join([*_head(), *_diagram(), *_grid(), *_cells()]) + "\n"


def cell(phase: Phase, event: type[Any]) -> _Transition | None:
    """Give what the table has for a pair, the start of a run included."""
    if phase is Phase.NEW and event.__name__ == "RunStarted":
        return start
    return TABLE[phase].get(event)


def told(transition: _Transition) -> str:
    """Give a transition's first sentence."""
    return (inspect.getdoc(transition) or "").partition("\n")[0]


def _head() -> Iterator[str]:
    yield "# States of a run"
    yield ""
    yield "<!-- Written by python -m scripts.draw_states; edit the docstrings in worker/core instead. -->"
    yield ""
    yield "A run is a pure machine, `step(state, event) -> Step(state, commands, decisions, stale)`."
    yield "This page is its whole table. The status of the run's row follows from the phase."
    yield ""
    yield "| phase | meaning |"
    yield "|---|---|"
    for phase in Phase:
        yield f"| {phase.value} | {MEANING[phase]} |"
    yield ""


def _diagram() -> Iterator[str]:
    yield "## Moves"
    yield ""
    yield "Not drawn: events that leave a run in its phase, and cancels and corruptions, which end it from anywhere."
    yield ""
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield "    [*] --> new"
    for (before, after), events in MOVES.items():
        shown = [name for name in events if name not in _FROM_OUTSIDE]
        yield f"    {before.value} --> {after.value}: {', '.join(shown)}"
    yield "    done --> [*]"
    yield "```"
    yield ""


def _grid() -> Iterator[str]:
    yield "## Every pair"
    yield ""
    yield "*acts*: described below. *late*: recorded, changes nothing. Empty: a protocol error, changes nothing either."
    yield ""
    yield f"| event | {' | '.join(phase.value for phase in Phase)} |"
    yield f"|---|{'---|' * len(Phase)}"
    for event in EVENTS:
        words = [_word(cell(phase, event)) for phase in Phase]
        yield f"| {event.__name__} | {' | '.join(words)} |"
    yield ""


def _word(transition: _Transition | None) -> str:
    if transition is None:
        return ""
    return "late" if transition is STALE else "acts"


def _cells() -> Iterator[str]:
    yield "## What each pair does"
    for phase in Phase:
        acts = [(event, found) for event in EVENTS if (found := cell(phase, event)) not in (None, STALE)]
        if not acts:
            continue
        yield ""
        yield f"### {phase.value}"
        yield ""
        yield "| event | what happens |"
        yield "|---|---|"
        for event, transition in acts:
            if transition is not None:
                yield f"| {event.__name__} | {told(transition)} |"


def main(argv: list[str]) -> int:
    """Write the page, or with `--check` only tell whether it is up to date."""
    if "--check" not in argv:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(document(), encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == document():
        return 0
    print(f"{PAGE.name} is not up to date: run python -m scripts.draw_states")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
