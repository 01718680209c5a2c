"""Logging: structlog to stderr, for people or as JSON. Events have names and content-free fields, never a text."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import structlog

from worker.settings import LogFormat

__all__ = ["configure", "quiet"]


def configure(format: LogFormat) -> Callable[[str, dict[str, Any]], None]:
    """Set up logging of this process and give the function that the runtime logs with.

    Strangers' loggers pass from warnings up only: below that dramatiq writes arguments and SQLAlchemy statements.
    """
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if format is LogFormat.JSON
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_class_only)
    )
    structlog.configure(
        processors=[structlog.processors.TimeStamper(fmt="iso", utc=True), renderer],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s", force=True)
    log = structlog.get_logger()

    def write(event: str, fields: dict[str, Any]) -> None:
        log.info(event, **fields)

    return write


def quiet(_event: str, _fields: dict[str, Any]) -> None:
    """Log nothing: for commands whose stderr belongs to their one error line."""


def _class_only(stream: Any, info: Any) -> None:
    # A traceback's locals and an exception's text can hold content.
    stream.write(f" {info[0].__name__}" if info and info[0] else "")
