"""The entry point of `regate`: finds the command, runs it, and tells what went wrong in one line and an exit code."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from worker.cli.faults import INTERRUPTED, PIPE_CLOSED, Fault, ReaderGoneError, fault_of
from worker.cli.texts import harmless

__all__ = ["COMMANDS", "main", "regate"]

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "up": ("serving", "Start everything that this installation needs, in one process."),
    "worker": ("serving", "Drive runs until the process is asked to end."),
    "sweep": ("serving", "Wake runs that are due and that nobody woke."),
    "migrate": ("serving", "Bring the database to this build's schema."),
    "doctor": ("doctor", "Check the installation, and say what is wrong with it."),
    "catalog": ("catalog", "Read and change providers, configurations, snippets, skills, policy."),
    "actor": ("people", "Add and disable people and service accounts."),
    "keys": ("keys", "List, add and rotate the keys that wrap what is stored."),
    "purge": ("purging", "Destroy what old runs said; what is known about them stays."),
    "tools": ("tools", "List the tools that models can be offered."),
    "run": ("running", "Run an agent here and see it to its rest."),
    "enqueue": ("running", "Store a run for the workers."),
    "explain": ("running", "Say what the gate would decide about a run, without starting it."),
    "runs": ("looking", "List runs, newest first."),
    "show": ("looking", "Show one run: its status, its open question, its answer."),
    "events": ("looking", "List what happened in a run."),
    "audit": ("looking", "List decisions, answers and changes."),
    "approve": ("answering", "Approve the calls that a run asks about."),
    "deny": ("answering", "Deny the calls that a run asks about."),
    "submit": ("answering", "Supply the input that a run asks for."),
    "settle": ("answering", "Say what became of a call of unknown outcome."),
    "resume": ("steering", "Try a blocked run again."),
    "cancel": ("steering", "End a run."),
    "requeue": ("steering", "Continue a failed run as a new one."),
    "replay": ("replaying", "Fold recorded runs through today's machine and compare."),
}
"""Command → its module, and its help: here, so that a list of commands imports none of them."""

_EPILOG: Final = (
    "Every command takes --json, --as NAME and each setting as a flag (--data-dir, --database-url, …); `regate doctor` "
    "lists the settings. Exit: 0 done, 1 refused, failed or blocked, 2 wrong usage, 3 not found, 4 conflict."
)


class _LazyGroup(click.Group):
    """A group that imports a command's module when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"worker.cli.commands.{COMMANDS[cmd_name][0]}")
        found = getattr(module, cmd_name)
        return found if isinstance(found, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, told) for name, (_, told) in COMMANDS.items()])


@click.group(cls=_LazyGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="regate", message="%(prog)s %(version)s")
def regate() -> None:
    """Durable, governed runs of LLM agents, judged again whenever they resume."""


def main() -> NoReturn:
    """Run the command line of this process."""
    code = _execute(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _pipe_closed()
    sys.exit(code)


def _execute(arguments: Sequence[str]) -> int:
    # Libraries say what they have to say through an exception; a line of theirs could hold anything.
    logging.basicConfig(handlers=[logging.NullHandler()])
    as_json = "--json" in arguments
    try:
        found = regate.main(list(arguments), prog_name="regate", standalone_mode=False)
    except (BrokenPipeError, ReaderGoneError):
        return _pipe_closed()
    except (KeyboardInterrupt, click.Abort):
        fault = Fault(code="interrupted", message="interrupted", exit=INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the outermost place: nobody ever sees a traceback
        fault = fault_of(error)
    else:
        return found if isinstance(found, int) else 0
    _tell(fault, as_json=as_json)
    return fault.exit


def _tell(fault: Fault, *, as_json: bool) -> None:
    line = json.dumps(fault.document, ensure_ascii=False) if as_json else f"regate: {fault.message}"
    try:
        sys.stderr.buffer.write(harmless(line).replace("\n", " ").encode(errors="replace") + b"\n")
        sys.stderr.flush()
    except OSError:
        pass  # nobody is there to be told; the exit code still says it


def _pipe_closed() -> int:
    # Whoever read stdout has gone. Python would complain about it once more when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED
