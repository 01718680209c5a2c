"""Answering questions: `approve`, `deny`, `submit`, `settle`. Each answers exactly the question that was shown."""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import click

from codec.answers import OutcomeWord
from codec.events import CallVerdict
from worker.cli.asking import confirm, has_person
from worker.cli.faults import REFUSED, USAGE, CommandError
from worker.cli.options import RUN, Asked, common
from worker.cli.pages.run import question_page
from worker.cli.printing import print_people
from worker.cli.session import VIA, Session, exit_of, in_session
from worker.cli.showing import show_run
from worker.runtime.answers import Verdicts

__all__ = ["approve", "deny", "settle", "submit"]

_Command = Callable[..., int | None]
_Give = Callable[[Session, str], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answering:
    """Which run, which question, and whether to wait for what follows."""

    uuid: str
    question: str | None
    yes: bool
    wait: bool


def _answer(function: _Command) -> _Command:
    """Add what all four commands take; the function gets `answering` in its place."""

    @functools.wraps(function)
    def gathered(asked: Asked, **given: Any) -> int | None:
        names = _Answering.__dataclass_fields__
        return function(asked, _Answering(**{name: given.pop(name) for name in names}), **given)

    found: _Command = common(gathered)
    for option in (
        click.option("--wait", is_flag=True, help="Follow the run to its next rest; exit 1 if it fails or is blocked."),
        click.option("--yes", is_flag=True, help="Answer the question that is open now, without asking back."),
        click.option("--question", metavar="ID", help="The question that you were shown."),
        click.argument("uuid", type=RUN),
    ):
        found = option(found)
    return found


@click.command()
@click.option("--call", "calls", multiple=True, metavar="ID", help="Approve only this call.")
@click.option("--edit", "edits", multiple=True, metavar="ID=JSON", help="Approve this call with other arguments.")
@click.option("--rest", type=click.Choice(["deny", "approve"]), help="What becomes of the calls that are not named.")
@click.option("--reason", metavar="TEXT", help="Why calls are denied; the model is told.")
@_answer
def approve(
    asked: Asked,
    answering: _Answering,
    calls: tuple[str, ...],
    edits: tuple[str, ...],
    rest: str | None,
    reason: str | None,
) -> int:
    """Approve the calls that a run asks about: all of them, or those that are named."""
    edited = _edits(edits)
    named = {call: CallVerdict(approve=True, arguments=edited.get(call)) for call in (*calls, *edited)}
    return _decide(asked, answering, named, approves=True, rest=rest, reason=reason)


@click.command()
@click.option("--call", "calls", multiple=True, metavar="ID", help="Deny only this call.")
@click.option("--rest", type=click.Choice(["approve", "deny"]), help="What becomes of the calls that are not named.")
@click.option("--reason", metavar="TEXT", help="Why; the model is told.")
@_answer
def deny(asked: Asked, answering: _Answering, calls: tuple[str, ...], rest: str | None, reason: str | None) -> int:
    """Deny the calls that a run asks about: all of them, or those that are named."""
    named = {call: CallVerdict(approve=False, reason=reason) for call in calls}
    return _decide(asked, answering, named, approves=False, rest=rest, reason=reason)


def _edits(given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for edit in given:
        call, equals, arguments = edit.partition("=")
        if not equals or not call or call in found:
            raise click.UsageError("write each call's arguments once, as --edit ID=JSON.")
        found[call] = arguments
    return found


def _decide(
    asked: Asked,
    answering: _Answering,
    named: dict[str, CallVerdict],
    *,
    approves: bool,
    rest: str | None,
    reason: str | None,
) -> int:
    if rest is not None and not named:
        raise click.UsageError("--rest goes with --call: it says what becomes of the calls that are not named.")
    # With calls named and nothing said about the rest, whatever is left has no verdict, and that is refused.
    default = (rest == "approve" if rest is not None else None) if named else approves
    said = Verdicts(default=default, calls=named, reason=None if default else reason)

    async def give(session: Session, question: str) -> None:
        await session.runtime.decide(session.actor, answering.uuid, question, said, via=VIA)

    return _give(asked, answering, give, "Approve" if approves else "Deny")


@click.command()
@click.option("--data", required=True, metavar="JSON", help="A JSON object; - reads it from stdin.")
@_answer
def submit(asked: Asked, answering: _Answering, data: str) -> int:
    """Supply the input that a run asks for."""
    text = _from_stdin() if data == "-" else data

    async def give(session: Session, question: str) -> None:
        await session.runtime.submit(session.actor, answering.uuid, question, text, via=VIA)

    return _give(asked, answering, give, "Submit this input")


def _from_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise click.UsageError("the data is not UTF-8.") from None


@click.command()
@click.option("--call", required=True, metavar="ID", help="The call that is asked about.")
@click.option("--happened", metavar="TEXT", help="It happened, and this was its result.")
@click.option("--run", "runs", is_flag=True, help="It did not happen: run it.")
@click.option("--stop", "stops", is_flag=True, help="End the run.")
@_answer
def settle(asked: Asked, answering: _Answering, call: str, happened: str | None, *, runs: bool, stops: bool) -> int:
    """Say what became of a call that was under way when its worker died."""
    if [happened is not None, runs, stops].count(True) != 1:
        raise click.UsageError("say one of --happened TEXT, --run and --stop.")

    async def give(session: Session, question: str) -> None:
        word = OutcomeWord(call=call, happened=happened, run=runs)
        await session.runtime.settle(session.actor, answering.uuid, question, word, via=VIA)

    return _give(asked, answering, give, "Settle the call so")


def _give(asked: Asked, answering: _Answering, give: _Give, verb: str) -> int:
    """Give the answer, see that somebody goes on with it, and show the run."""
    if answering.question is None and not answering.yes and not has_person():
        raise CommandError(
            "question_missing",
            "name the question that you answer: --question ID (regate show tells it), or --yes for the one open now",
            USAGE,
            uuid=answering.uuid,
        )

    async def work(session: Session) -> int:
        await give(session, answering.question or await _question(session, answering, verb))
        await session.help_along(answering.uuid, wait=answering.wait)
        shown = await show_run(session, answering.uuid)
        return exit_of(shown) if answering.wait else 0

    return in_session(asked, work)


async def _question(session: Session, answering: _Answering, verb: str) -> str:
    """Give the id of the open question; a person is shown it and asked. Empty = none: the runtime refuses."""
    waiting = (await session.runtime.show(session.actor, answering.uuid)).waiting
    if waiting is None or answering.yes:
        return "" if waiting is None else waiting.question
    print_people(question_page(waiting, answering.uuid, answerable=False), stderr=True)
    if not confirm(f"\n{verb}?"):
        raise CommandError("not_confirmed", "nothing was answered", REFUSED, uuid=answering.uuid)
    return waiting.question
