"""Lists for people: runs, events, the audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from codec.vocabulary import RunStatus
from worker.cli.printing import listing, text
from worker.cli.texts import ago
from worker.cli.wording import STATUS_STYLE

__all__ = ["audit_page", "event_line", "runs_page"]

_BASE = ("sequence", "at", "kind", "round", "segment", "elapsed_ms")


def runs_page(documents: Sequence[dict[str, Any]]) -> RenderableType:
    """Lay out a list of runs."""
    if not documents:
        return text("No runs.")
    columns = {"run": "fixed", "status": "fixed", "configuration": "", "by": "", "created": "fixed", "": ""}
    return listing(columns, (_run(document) for document in documents))


def _run(document: dict[str, Any]) -> Iterator[RenderableType]:
    status = RunStatus(document["status"])
    yield text(document["uuid"])
    yield text(status.value, STATUS_STYLE[status])
    yield text(document["configuration"])
    yield text(document["started_by"])
    yield text(f"{_clock(document['created_at'])} ({ago(document['created_at'])})")
    yield _remark(document)


def _remark(document: dict[str, Any]) -> Text:
    blocked, waiting, reason = document["blocked"], document["waiting"], document["termination_reason"]
    if blocked is not None:
        return text(f"blocked: {blocked.reason.value}", "red")
    if waiting is not None and waiting["answered_by"] is not None:
        return text(f"answered by {waiting['answered_by']}", "dim")
    if waiting is not None:
        return text(f"asks for {waiting['kind'].value}", "yellow")
    told = [] if reason is None or reason == document["status"] else [reason.value]
    return text(", ".join([*told, *(["purged"] if document["purged"] else [])]), "dim")


def event_line(event: dict[str, Any]) -> RenderableType:
    """Lay out one event."""
    told = text(f"{event['sequence']:>4}  ", "dim")
    told.append_text(text(f"{_clock(event['at'])}  "))
    told.append_text(text(f"{event['kind']:<16}", "bold"))
    told.append_text(text("  ".join(_facts(event))))
    return told


def _facts(event: dict[str, Any]) -> Iterator[str]:
    for name, value in event.items():
        if name in _BASE or value in (None, ""):
            continue
        if name == "send":
            yield f"sends to {value['provider']} ({value['zone']}) {_judged(value)}"
        elif name == "decision":
            yield f"{value['zone']} {_judged(value)}"
        elif name == "question":
            yield f"asks for {value['kind']} (question {value['number']})"
        else:
            yield f"{name} {value}"


def _judged(value: dict[str, Any]) -> str:
    told = f"{value['verdict']}"
    return f"{told}: {value['source']} is {value['data_class']}" if value["source"] else told


def audit_page(documents: Sequence[dict[str, Any]]) -> RenderableType:
    """Lay out the audit, oldest first."""
    if not documents:
        return text("The audit holds nothing of that.")
    columns = {"at": "fixed", "decision": "fixed", "by": "", "run": "fixed", "about": ""}
    return listing(columns, (_audited(document) for document in documents))


def _audited(document: dict[str, Any]) -> Iterator[RenderableType]:
    yield text(_clock(document["at"]))
    yield text(document["decision"])
    yield text(f"{document['actor']} via {document['via']}")
    yield text((document["run"] or "")[:8])
    about = [document[name] for name in ("detail", "tool", "source") if document[name]]
    if document["data_class"] and document["zone"]:
        about.append(f"{document['data_class']} to {document['zone']} ({document['provider']}), {document['mode']}")
    yield text(" · ".join(about))


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"
