"""What went wrong, as scripts meet it: a stable code, one sentence, an exit code. Nothing in here carries content.

Exit codes: 1 refused, failed, blocked or diverged · 2 wrong usage · 3 not found or not yours · 4 conflict.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

from codec.errors import CodecError, SchemaTooNewError
from worker.ports.catalogue import CatalogueError
from worker.ports.keeping import KeepingError
from worker.ports.runs import StoreError
from worker.ports.sealing import KeyUnavailableError, SealingError
from worker.runtime.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError, RuntimeFault
from worker.settings import SettingsError

__all__ = [
    "CONFLICT",
    "INTERRUPTED",
    "NOT_FOUND",
    "PIPE_CLOSED",
    "REFUSED",
    "USAGE",
    "CommandError",
    "Fault",
    "ReaderGoneError",
    "fault_of",
]

REFUSED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
INTERRUPTED: Final = 130
"""As a shell says of a command that SIGINT ended."""
PIPE_CLOSED: Final = 141
"""As a shell says of a command that SIGPIPE ended."""

_EXIT_OF: Final[tuple[tuple[type[RuntimeFault], int], ...]] = (
    (NotFoundError, NOT_FOUND),
    (InvalidError, USAGE),
    (ConflictError, CONFLICT),
    (ForbiddenError, REFUSED),
)
_ECHO: Final = re.compile(r".*['\"] is not ", re.DOTALL)
"""With this click's own messages repeat the value that was given."""
_PLAIN: Final = re.compile(r"-{0,2}[a-z][a-z-]{0,20}")
_STORE: Final = {
    "busy": "the database is busy; try again",
    "key_behind": "the key ring here lacks the database's active key; copy the newer file",
    "unavailable": "the database cannot be reached",
    "disconnected": "the database ended the connection; try again",
    "url": "the database's URL cannot be used",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault as it is told. `document` is what `--json` prints."""

    code: str
    message: str
    exit: int
    paths: tuple[str, ...] = ()
    uuid: str | None = None
    decided_by: str | None = None

    @property
    def document(self) -> dict[str, Any]:
        """The error document."""
        fields = asdict(self)
        del fields["exit"]
        return {"error": fields}


class ReaderGoneError(Exception):
    """Whoever read stdout has gone. Nobody is told: nobody listens."""


class CommandError(Exception):
    """A command's own refusal, already in the words of a fault."""

    def __init__(self, code: str, message: str, exit: int, *, uuid: str | None = None) -> None:
        super().__init__(message)
        self.fault = Fault(code=code, message=message, exit=exit, uuid=uuid)


def fault_of(error: Exception) -> Fault:
    """Give the fault of any exception. Total: what nobody foresaw is an internal fault, named by class and place."""
    if isinstance(error, CommandError):
        return error.fault
    if isinstance(error, RuntimeFault):
        return _runtime(error)
    if isinstance(error, click.ClickException):
        return Fault(code="usage", message=_usage(error), exit=USAGE)
    if isinstance(error, CatalogueError):
        if error.missing:
            return Fault(code="unknown_record", message=str(error), exit=NOT_FOUND)
        return Fault(code="catalogue_refused", message=str(error), exit=USAGE)
    return _technical(error)


def _runtime(error: RuntimeFault) -> Fault:
    code = next((exit for kind, exit in _EXIT_OF if isinstance(error, kind)), REFUSED)
    return Fault(
        code=error.code,
        message=error.message,
        exit=code,
        paths=error.paths,
        uuid=error.uuid,
        decided_by=error.decided_by,
    )


def _technical(error: Exception) -> Fault:
    if isinstance(error, SettingsError):
        return Fault(code="setting", message=str(error), exit=USAGE)
    if isinstance(error, KeepingError):
        return Fault(code=error.code, message=str(error), exit=REFUSED)
    if isinstance(error, StoreError):
        known = _STORE.get(error.problem)
        return Fault(code="database", message=known or f"the database refused or failed: {error.problem}", exit=REFUSED)
    if isinstance(error, KeyUnavailableError):
        return Fault(code="key", message=f"the key ring of this machine lacks {error.key_id}", exit=REFUSED)
    if isinstance(error, SealingError):
        return Fault(code="sealed", message=str(error), exit=REFUSED)
    if isinstance(error, SchemaTooNewError):
        return Fault(code="version", message=f"{error}; a newer build wrote it", exit=REFUSED)
    if isinstance(error, CodecError):
        return Fault(code="invalid_request", message=str(error), exit=USAGE, paths=(error.path,))
    return Fault(code="internal", message=f"a fault of regate itself: {_place(error)}; please report it", exit=REFUSED)


def _usage(error: click.ClickException) -> str:
    """Say what is wrong with the command line, without what was written there: it may be a prompt or a reason."""
    told = " ".join(error.format_message().split())
    match error:
        case click.NoSuchOption():
            told = _no_such("option", error.option_name, error.possibilities)
        case click.NoSuchCommand():
            told = _no_such("command", error.command_name, error.possibilities)
        case click.BadParameter(param=click.Parameter() as param) if _ECHO.match(error.message):
            told = f"{param.get_error_hint(error.ctx)} is not {_ECHO.sub('', error.message)}"
        case _ if told.startswith("Got unexpected extra argument"):
            told = "there are too many arguments; a text with spaces needs quotes around it"
    context = error.ctx if isinstance(error, click.UsageError) else None
    return told if context is None else f"{told.rstrip('.')} (see: {context.command_path} --help)"


def _no_such(what: str, name: str, known: Iterable[str] | None) -> str:
    told = f"there is no {what} {name}" if _PLAIN.fullmatch(name) else f"there is no such {what}"
    return f"{told}; did you mean {' or '.join(known)}?" if known else told


def _place(error: Exception) -> str:
    """Name an exception's class and the line that raised it. Its text is left out: it may be content."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return type(error).__name__
    return f"{type(error).__name__} at {Path(frames[-1].filename).name}:{frames[-1].lineno}"
