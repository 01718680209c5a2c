"""What went wrong, in a code, a sentence and an exit code."""

from __future__ import annotations

import click
import pytest

from codec.errors import CodecError, SchemaTooNewError
from worker.cli.faults import CommandError, fault_of
from worker.ports.catalogue import CatalogueError
from worker.ports.runs import StoreError
from worker.ports.sealing import KeyUnavailableError, SealBrokenError
from worker.runtime.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError, UnavailableError
from worker.settings import SettingsError


@pytest.mark.parametrize(
    ("error", "exit", "code"),
    [
        (NotFoundError("not_found", "m"), 3, "not_found"),
        (ForbiddenError("not_permitted", "m"), 1, "not_permitted"),
        (InvalidError("invalid_edit", "m"), 2, "invalid_edit"),
        (ConflictError("stale_question", "m"), 4, "stale_question"),
        (UnavailableError("busy", "m"), 1, "busy"),
        (CommandError("start", "m", 1), 1, "start"),
        (SettingsError("REGATE_HTTP", "is bad"), 2, "setting"),
        (CatalogueError("is bad", 3), 2, "catalogue_refused"),
        (CatalogueError("is not there", missing=True), 3, "unknown_record"),
        (StoreError("busy"), 1, "database"),
        (StoreError("new_word"), 1, "database"),
        (KeyUnavailableError("k-1"), 1, "key"),
        (SealBrokenError("state"), 1, "sealed"),
        (SchemaTooNewError("state", 9, 1), 1, "version"),
        (CodecError("request", "$.x", "not a name"), 2, "invalid_request"),
        (click.UsageError("m"), 2, "usage"),
        (RuntimeError("marker"), 1, "internal"),
    ],
)
def test_each_error_has_its_exit_code(error: Exception, exit: int, code: str) -> None:
    """And a stable word."""
    fault = fault_of(error)
    assert (exit, code) == (fault.exit, fault.code)
    assert fault.message


def test_what_an_error_knows_is_passed_on() -> None:
    """Places, the run, and who was first."""
    error = ConflictError("already_answered", "m", paths=("$.a",), uuid="u", decided_by="ann")
    assert {
        "error": {
            "code": "already_answered",
            "message": "m",
            "paths": ("$.a",),
            "uuid": "u",
            "decided_by": "ann",
        }
    } == fault_of(error).document


def test_a_fault_of_ours_is_named_by_class_and_place() -> None:
    """Its text may be content."""
    try:
        raise KeyError("marker-of-content")
    except KeyError as error:
        message = fault_of(error).message
    assert "KeyError at test_faults.py:" in message
    assert "marker" not in message


@pytest.mark.parametrize(
    "arguments",
    [
        ["--marker of an option"],
        ["--number", "marker of a value"],
        ["--choice", "marker's not one of ours"],
        ["marker one", "marker two"],
    ],
)
def test_wrong_usage_repeats_nothing(arguments: list[str]) -> None:
    """What stands on a command line may be a prompt or a reason."""

    @click.command()
    @click.option("--number", type=int)
    @click.option("--choice", type=click.Choice(["a", "b"]))
    def command(number: int, choice: str) -> None:
        """Do nothing."""

    with pytest.raises(click.UsageError) as caught:
        command.main(arguments, standalone_mode=False)
    message = fault_of(caught.value).message
    assert "marker" not in message
    assert "--help" in message
