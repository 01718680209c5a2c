"""The last step of every command that is about one run: print its show document."""

from __future__ import annotations

from codec.vocabulary import TerminationReason
from codec.wire import Shown
from worker.cli.pages.run import print_shown
from worker.cli.printing import print_json
from worker.cli.session import Session
from worker.cli.wording import exceeds

__all__ = ["show_run"]


async def show_run(session: Session, uuid: str) -> Shown:
    """Print a run as this actor may see it, and give what was printed."""
    shown = await session.runtime.show(session.actor, uuid)
    if session.asked.json:
        print_json(shown)
    else:
        row = await session.runtime.row(session.actor, uuid)
        sources = await session.runtime.parts.store.sources(row.uid)
        print_shown(shown, row, sources, await _why(session, shown))
    return shown


async def _why(session: Session, shown: Shown) -> str | None:
    """Give the refusal that ended a run."""
    if shown.termination_reason is not TerminationReason.CONTEXT_BLOCKED:
        return None
    events = await session.runtime.events(session.actor, shown.uuid)
    decision = next((event["decision"] for event in reversed(events) if "decision" in event), None)
    if decision is None or decision["source"] is None:
        return None
    named = {name: decision[name] for name in ("source", "data_class", "zone", "ceiling", "provider")}
    return f"{exceeds(**named, configuration=shown.configuration)}; nothing was sent"
