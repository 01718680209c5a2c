"""One run for people: where it stands, what it asks, what blocks it, what it answered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from codec.vocabulary import QuestionKind
from codec.wire import Shown, ShownCall, ShownWaiting
from worker.cli.printing import block, print_people, section, text
from worker.cli.texts import moment, plural
from worker.cli.wording import ENDED, STATUS_STYLE, WAITS_FOR, blocked_remedy, blocked_sentence
from worker.ports.records import RunRow, SourceRow

__all__ = ["print_shown", "question_page"]


def print_shown(shown: Shown, row: RunRow, sources: Sequence[SourceRow], why: str | None = None) -> None:
    """Print the whole page of a run. `why` = what the gate said, when that ended it."""
    parts: list[RenderableType] = [text(f"Run {shown.uuid}", "bold"), _head(shown, row, sources, why)]
    if shown.blocked is not None:
        told = Text.assemble(text(blocked_sentence(shown.blocked)), ".\n", ("What to do: ", "bold"))
        told.append_text(text(blocked_remedy(shown.blocked, shown.uuid)))
        parts.append(section("Blocked", Padding(told, (0, 0, 0, 2)), style="bold red"))
    if shown.waiting is not None:
        parts.append(question_page(shown.waiting, shown.uuid, answerable=shown.blocked is None))
    if shown.answer:
        parts.append(section("Answer", Padding(text(shown.answer), (0, 0, 0, 2)), style="bold green"))
    if shown.purged:
        parts.append(text("Its content was purged: what it was asked, what it answered and what its tools did."))
    print_people(Group(*parts))


def _head(shown: Shown, row: RunRow, sources: Sequence[SourceRow], why: str | None) -> RenderableType:
    usage = shown.usage
    tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out" if usage.input_tokens else None
    rounds = plural(shown.rounds, "round")
    if shown.attempts > 1:
        rounds += f", {plural(shown.attempts, 'segment')}"
    return block(
        (
            ("status", _status(shown)),
            ("because", why or (shown.termination_reason and ENDED.get(shown.termination_reason))),
            ("configuration", shown.configuration),
            ("started", f"{moment(row.created_at)} by {shown.started_by}, {shown.origin.value}"),
            ("ended", moment(row.finished_at) if row.finished_at is not None else None),
            ("held by", row.holder if row.token is not None else None),
            ("work", f"{rounds}, {tokens}" if tokens else rounds),
            ("carries", "\n".join(_carried(source) for source in sources) or None),
            ("left out", ", ".join(f"{d.kind.value} uid {d.uid} ({d.reason.value})" for d in shown.dropped) or None),
            ("continues", f"{shown.lineage.from_} from entry {shown.lineage.at}" if shown.lineage else None),
        )
    )


def _status(shown: Shown) -> Text:
    told = text(shown.status.value, STATUS_STYLE[shown.status])
    reason = shown.termination_reason
    if reason is not None and reason.value != shown.status.value:
        told.append_text(text(f" · {reason.value}", "dim"))
    return told


def _carried(source: SourceRow) -> str:
    declared = f", {source.seen} when it was composed" if source.seen else ""
    return f"{source.name} ({source.origin}{declared})"


def question_page(waiting: ShownWaiting, uuid: str, *, answerable: bool = True) -> RenderableType:
    """Lay out an open question with everything that a decider must see."""
    parts: list[RenderableType] = []
    for call in waiting.calls:
        parts += [_call(call, searched=waiting.kind is QuestionKind.OUTCOME), Text("")]
    if waiting.input is not None:
        wanted = json.dumps(waiting.input.schema, ensure_ascii=False, indent=2)
        parts += [block((("tool", waiting.input.tool), ("asks for", wanted))), Text("")]
    parts.append(block(_facts(waiting, uuid, answerable=answerable)))
    title = f"Question {waiting.number} · {WAITS_FOR[waiting.kind]}"
    return section(title, *parts, style="bold yellow")


def _facts(waiting: ShownWaiting, uuid: str, *, answerable: bool) -> Iterator[tuple[str, RenderableType | None]]:
    yield "question", text(waiting.question)
    yield "expires", text(moment(waiting.expires_at)) if waiting.expires_at is not None else None
    if waiting.answered_by is not None:
        yield "answered", text(f"by {waiting.answered_by}; the run has not gone on yet")
    elif answerable:
        yield "to answer", text(_how(waiting, uuid))


def _how(waiting: ShownWaiting, uuid: str) -> str:
    named = f"--question {waiting.question}"
    match waiting.kind:
        case QuestionKind.APPROVAL:
            return f"regate approve {uuid} {named}\nregate deny {uuid} {named}"
        case QuestionKind.INPUT:
            return f"regate submit {uuid} {named} --data JSON"
        case QuestionKind.OUTCOME:
            call = next((c.id for c in waiting.calls if c.asked), "ID")
            return f"regate settle {uuid} {named} --call {call} (--happened TEXT | --run | --stop)"


def _call(call: ShownCall, *, searched: bool) -> RenderableType:
    # By its key one finds at the other side whether a write arrived.
    head = text(f"{call.id}  {call.name}  ", "bold")
    head.append_text(text(call.effect.value, "yellow" if call.effect.is_write else "dim"))
    decided = None if call.decision is None else f"{call.decision} by {call.decided_by or 'nobody'}"
    told = block(
        (
            ("asked", None if searched or call.asked or call.decision else "no: it needs no decision"),
            ("decided", decided),
            ("outcome", "unknown" if searched and call.asked else None),
            ("arguments", _arguments(call.arguments)),
            ("preview", _preview(call)),
            ("key", call.key if searched else None),
        )
    )
    return Padding(Group(head, told), (0, 0, 0, 2))


def _arguments(arguments: Any) -> RenderableType | None:
    if arguments is None:
        return None
    shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, indent=2)
    return text(shown)


def _preview(call: ShownCall) -> RenderableType | None:
    if call.preview is None:
        return None
    if call.preview.failed:
        return text("could not be made; judge by the arguments", "yellow")
    return text("\n".join(call.preview.lines))
