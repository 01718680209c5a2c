"""Options that every command has, and the types of what people write on the command line."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from codec.errors import CodecError
from codec.ids import parse_run_uuid
from worker.settings import DEFAULTS, Settings

__all__ = ["AGE", "RUN", "SINCE", "Asked", "common", "flag_of"]

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|w)")
_AGE: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(s|min|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked for besides a command's own options. `flags` are settings by their variables' names."""

    json: bool
    acts_as: str | None
    flags: Mapping[str, str]

    def settings(self) -> Settings:
        """Read the settings: flags over environment over `.env`. Errors: `SettingsError`."""
        return Settings.load(os.environ, Path(".env"), self.flags)

    def with_flag(self, name: str, value: str) -> Asked:
        """Give the same with one setting more."""
        return replace(self, flags={**self.flags, name: value})


def flag_of(setting: str) -> str:
    """Give the flag of a setting: `--data-dir` for `REGATE_DATA_DIR`."""
    return "--" + setting.removeprefix("REGATE_").lower().replace("_", "-")


def common(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """Add the options that every command has; the function gets them as its first argument."""

    @functools.wraps(function)
    def wrapped(*args: Any, **given: Any) -> int | None:
        flags = {name: value for name in DEFAULTS if (value := given.pop(_variable(name))) is not None}
        asked = Asked(json=given.pop("as_json"), acts_as=given.pop("acts_as"), flags=flags)
        return function(asked, *args, **given)

    found: Callable[..., int | None] = wrapped
    for name in reversed(DEFAULTS):
        # Hidden: a line for each in every command's help would hide the command's own options.
        found = click.option(flag_of(name), _variable(name), metavar="VALUE", hidden=True)(found)
    found = click.option("--as", "acts_as", metavar="NAME", help="Act as this actor.")(found)
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(found)


def _variable(setting: str) -> str:
    return f"setting_{setting.lower()}"


class _RunUuid(click.ParamType[str]):
    """A run's uuid; malformed is wrong usage, before anything is opened."""

    name = "uuid"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return parse_run_uuid(str(value).lower())
        except CodecError:
            self.fail("this is not the uuid of a run.", param, ctx)


class _Since(click.ParamType[float]):
    """A moment: ISO-8601, or how long ago, as in `2h`, `30m`, `1d`. Gives seconds since the epoch."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip()
        parts = _DURATION.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            return time.time() - sum(float(number) * _SECONDS[unit] for number, unit in parts)
        try:
            # A time without a zone is the reader's own.
            return datetime.fromisoformat(text).astimezone().timestamp()
        except (ValueError, OverflowError, OSError):
            self.fail("write a time as 2026-03-01T12:00 or how long ago, as 2h, 30m or 1d.", param, ctx)


class _Age(click.ParamType[float]):
    """A length of time, as `30d`. Gives seconds. What is destroyed by it is not to hang on how `m` is read."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = _AGE.fullmatch(str(value).strip())
        if found is None:
            self.fail("write an age as 600s, 90min, 12h or 30d.", param, ctx)
        return float(found[1]) * {"s": 1, "min": 60, "h": 3600, "d": 86_400}[found[2]]


AGE: Final = _Age()
RUN: Final = _RunUuid()
SINCE: Final = _Since()
