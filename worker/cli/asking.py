"""Questions to the person at the terminal. They go to stderr: stdout holds the command's answer and nothing else."""

from __future__ import annotations

import asyncio
import os
import sys

import click

from worker.cli.texts import harmless

__all__ = ["confirm", "confirm_on_loop", "has_person"]


def has_person() -> bool:
    """Whether somebody can read a question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> bool:
    """Ask a yes-or-no question; no answer is a no. Call only with a person."""
    return click.confirm(harmless(question), default=False, err=True)


async def confirm_on_loop(question: str, *, unless: asyncio.Event) -> bool:
    """Ask without stopping the loop. Nobody there, or `unless` set meanwhile (a second Ctrl-C): that is a yes.

    The terminal is read by the loop and not by a thread: a thread that waits for a line cannot be ended.
    """
    if not has_person():
        return True
    sys.stderr.write(f"\n{harmless(question)} [y/N] ")
    sys.stderr.flush()
    loop, answer = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
    descriptor = sys.stdin.fileno()
    loop.add_reader(descriptor, lambda: None if answer.done() else answer.set_result(os.read(descriptor, 1024)))
    again = asyncio.create_task(unless.wait(), name="interrupted again")
    try:
        await asyncio.wait([answer, again], return_when=asyncio.FIRST_COMPLETED)
    finally:
        again.cancel()
        loop.remove_reader(descriptor)
    return unless.is_set() or answer.result().strip().lower() in (b"y", b"yes")
