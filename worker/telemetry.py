"""Logging: structlog to stderr, for people or as JSON. Events have names and content-free fields, never a text.

What libraries log goes through the same door, reduced to where it came from: their messages, arguments and tracebacks
can hold statements, messages and whatever an exception's text quotes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import structlog

__all__ = ["Log", "configure", "quiet"]

Log = Callable[[str, dict[str, Any]], None]
"""Takes the event's name, `area.past_tense`, and its content-free fields."""


def configure(*, as_json: bool) -> Log:
    """Set up logging of this process and give the function that the runtime logs with.

    Of strangers only warnings and worse are told.
    """
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_nothing_more)
    )
    structlog.configure(
        processors=[structlog.processors.TimeStamper(fmt="iso", utc=True), renderer],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    log = structlog.get_logger()

    def write(event: str, fields: dict[str, Any]) -> None:
        log.info(event, **fields)

    logging.basicConfig(level=logging.WARNING, handlers=[_Strangers(write)], force=True)
    return write


def quiet(_event: str, _fields: dict[str, Any]) -> None:
    """Log nothing: for commands whose stderr belongs to their one error line."""


class _Strangers(logging.Handler):
    """Tells that a library logged something: which one, how bad, where, and the class of the error that it caught."""

    def __init__(self, write: Log) -> None:
        super().__init__(logging.WARNING)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        """Write the place of a record. What it says is left out."""
        fields: dict[str, Any] = {
            "logger": record.name,
            "level": record.levelname.lower(),
            "place": f"{record.module}:{record.lineno}",
        }
        if record.exc_info and record.exc_info[0] is not None:
            fields["error"] = record.exc_info[0].__name__
        self._write("library.logged", fields)


def _nothing_more(_stream: Any, _info: Any) -> None:
    """Print no traceback: its locals and its exceptions' texts can hold content."""
