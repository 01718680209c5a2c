"""Starting runs: `run`, `enqueue`, `explain`."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from codec.request import AgentRunRequest, RunAugmentation
from codec.transcript import Message
from codec.vocabulary import Origin, Role
from worker.cli.asking import confirm_on_loop
from worker.cli.faults import INTERRUPTED
from worker.cli.options import Asked, common
from worker.cli.pages.explaining import print_dry_run, print_explained
from worker.cli.printing import print_json, print_line
from worker.cli.session import VIA, Session, exit_of, in_session
from worker.cli.showing import show_run

__all__ = ["enqueue", "explain", "run"]

_Command = Callable[..., int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What was asked for, before anybody acts."""

    configuration: str
    prompt: str | None
    snippets: tuple[str, ...]
    skills: tuple[str, ...]
    tools: tuple[str, ...]
    no_tools: bool
    max_iterations: int | None
    system: str | None

    def request(self, session: Session) -> AgentRunRequest:
        """Build the request of this session's actor. A run that forces nothing has no augmentation."""
        forces = self.snippets or self.skills or self.system is not None
        augmentation = RunAugmentation(
            forced_snippet_uids=self.snippets, forced_skill_uids=self.skills, system_prompt_override=self.system
        )
        said = () if self.prompt is None else (Message(role=Role.USER, content=self.prompt),)
        return AgentRunRequest(
            configuration=self.configuration,
            messages=said,
            allowed_tool_names=() if self.no_tools else self.tools or None,
            max_iterations=self.max_iterations,
            augmentation=augmentation if forces else None,
            actor=session.actor,
        )


def _request_options(*, prompt: bool) -> Callable[[_Command], _Command]:
    """Add the options that say what to run; the function gets `wanted` in their place."""

    def decorate(function: _Command) -> _Command:
        @functools.wraps(function)
        def gathered(asked: Asked, **given: Any) -> int | None:
            return function(asked, _wanted(given, prompt=prompt), **given)

        found = click.argument("prompt", required=prompt)(common(gathered))
        for option in (
            click.option("--system", metavar="TEXT", help="Replace the configuration's system prompt."),
            click.option("--max-iterations", type=click.IntRange(1, 200), metavar="N", help="Rounds at most."),
            click.option("--no-tools", is_flag=True, help="Offer no tools."),
            click.option("--tool", "tools", multiple=True, metavar="NAME", help="Offer only these tools."),
            click.option("--skill", "skills", multiple=True, metavar="ID", help="Force a skill onto the run."),
            click.option("--snippet", "snippets", multiple=True, metavar="ID", help="Force a snippet onto the run."),
            click.option("-c", "--configuration", required=True, metavar="CONF", help="The configuration to run."),
        ):
            found = option(found)
        return found

    return decorate


def _wanted(given: dict[str, Any], *, prompt: bool) -> _Wanted:
    text = given.pop("prompt")
    wanted = _Wanted(
        prompt=_read_prompt(text) if prompt else None,
        **{name: given.pop(name) for name in _Wanted.__dataclass_fields__ if name != "prompt"},
    )
    if wanted.no_tools and wanted.tools:
        raise click.UsageError("--tool and --no-tools exclude each other.")
    return wanted


def _read_prompt(given: str) -> str:
    try:
        # An argument that is not UTF-8 arrives with lone surrogates in the place of its bytes.
        text = sys.stdin.buffer.read().decode() if given == "-" else given.encode().decode()
    except UnicodeError:
        raise click.UsageError("the prompt is not UTF-8.") from None
    if not text.strip():
        raise click.UsageError("the prompt is empty.")
    return text


@click.command(epilog="PROMPT is a text, or - to read it from stdin.")
@_request_options(prompt=True)
@click.option("--dry-run", is_flag=True, help="Show what would be sent first, and send nothing.")
def run(asked: Asked, wanted: _Wanted, *, dry_run: bool) -> int:
    """Run an agent here and see it to its rest: its end, or a question to a person.

    Ctrl-C asks on a terminal, and cancels the run.
    """

    async def work(session: Session) -> int:
        if dry_run:
            found = await session.runtime.dry_run(wanted.request(session))
            print_json(found) if asked.json else print_dry_run(found)
            return 0
        # From here on: whoever interrupts after the row is written must not leave a run that nobody drives.
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, stop.set)
        begun = await session.runtime.begin(wanted.request(session), origin=Origin.CLI)
        interrupted = await _driven(session, begun.uuid, stop)
        loop.remove_signal_handler(signal.SIGINT)
        shown = await show_run(session, begun.uuid)
        return INTERRUPTED if interrupted else exit_of(shown)

    return in_session(asked, work)


async def _driven(session: Session, uuid: str, stop: asyncio.Event) -> bool:
    """Drive a run to its rest. True when somebody interrupted it; it is cancelled then."""
    driving = asyncio.create_task(session.runtime.drive(uuid), name="drive")
    try:
        while not driving.done():
            stopped = asyncio.create_task(stop.wait(), name="interrupt")
            await asyncio.wait([driving, stopped], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if stop.is_set() and not driving.done():
                stop.clear()
                # It goes on meanwhile: a question must not cost the run its lease.
                if await confirm_on_loop("Cancel this run?", unless=stop):
                    await session.runtime.cancel(session.actor, uuid, via=VIA)
                    await driving
                    return True
                click.echo("The run goes on.", err=True)
        await driving
    finally:
        driving.cancel()
    return False


@click.command(epilog="PROMPT is a text, or - to read it from stdin.")
@_request_options(prompt=True)
@click.option("--wait", is_flag=True, help="Follow the run to its rest and show it.")
def enqueue(asked: Asked, wanted: _Wanted, *, wait: bool) -> int:
    """Store a run, wake a worker, and print the run's uuid. The broker may be away."""

    async def work(session: Session) -> int:
        handle = await session.runtime.enqueue(wanted.request(session), origin=Origin.CLI)
        if wait:
            await session.help_along(handle.uuid, wait=True)
            return exit_of(await show_run(session, handle.uuid))
        print_json({"uuid": handle.uuid}) if asked.json else print_line(handle.uuid)
        return 0

    return in_session(asked, work)


@click.command()
@_request_options(prompt=False)
def explain(asked: Asked, wanted: _Wanted) -> int:
    """Say what the gate would decide about a run: its sources, the strictest class, the zone, and what would help."""

    async def work(session: Session) -> int:
        found = await session.runtime.explain(wanted.request(session))
        print_json(found) if asked.json else print_explained(found)
        return 0

    return in_session(asked, work)
