"""What an operator can set: read once from flags, environment and `.env`, checked, then passed on as one value.

This module never changes the environment and does nothing at import. No message, `repr` or row of it shows a
password or a provider's key.
"""

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Self, TypeVar
from urllib.parse import SplitResult, urlsplit

from dotenv.parser import parse_stream

__all__ = [
    "EMBEDDED",
    "PROVIDER_KEY_PREFIX",
    "HttpAddress",
    "LogFormat",
    "Privacy",
    "SettingRow",
    "Settings",
    "SettingsError",
    "Source",
]

T = TypeVar("T")
D = TypeVar("D")
E = TypeVar("E", bound=StrEnum)
Source = Literal["default", "environment", ".env", "flag"]

EMBEDDED = "embedded"
PROVIDER_KEY_PREFIX = "REGATE_KEY_"
MASK = "***"
WEEK_SECONDS = 604_800.0  # an upper bound that catches milliseconds given as seconds, and fits any timestamp
DEFAULTS = {
    "REGATE_DATA_DIR": "./.regate",
    "REGATE_DATABASE_URL": "",
    "REGATE_BROKER_URL": EMBEDDED,
    "REGATE_HTTP": "127.0.0.1:8321",
    "REGATE_KEYS_FILE": "",
    "REGATE_TOOLS": "",
    "REGATE_MAX_RUNS": "1000",
    "REGATE_LEASE_SECONDS": "30",
    "REGATE_SWEEP_SECONDS": "5",
    "REGATE_RETRY_SECONDS": "30,60,120",
    "REGATE_FILES_ROOT": "",
    "REGATE_BEAT_FILE": "",
    "REGATE_LOG": "console",
    "REGATE_PRIVACY": "metadata",
}


class SettingsError(Exception):
    """A setting cannot be used. `problem` never holds the value, which may be a secret in the wrong place."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} {problem}")
        self.name = name
        self.problem = problem


class LogFormat(StrEnum):
    """How log lines are written: for a person, or one JSON object a line."""

    CONSOLE = "console"
    JSON = "json"


class Privacy(StrEnum):
    """What read surfaces may show, from nothing to everything."""

    NONE = "none"
    METADATA = "metadata"
    REDACTED = "redacted"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAddress:
    """Where the web process listens. Port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One setting as it may be shown: `value` is masked already; empty means that nothing is set."""

    name: str
    value: str
    source: Source
    secret: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one process. Paths are absolute; what is secret stays out of `repr`."""

    data_dir: Path
    database_url: str = field(repr=False)
    """An SQLAlchemy URL, `sqlite` (always a file) or `postgresql`, with or without a driver."""
    broker_url: str = field(repr=False)
    """`EMBEDDED`, or a URL that starts with redis, rediss or unix."""
    http: HttpAddress
    keys_file: Path
    tools: tuple[str, ...]
    """Modules that register tools, in the order given, each once."""
    max_runs: int
    lease_seconds: float
    sweep_seconds: float
    retry_seconds: tuple[float, ...]
    """The wait before each retry of a parked run; as many retries as there are waits."""
    files_root: Path | None
    beat_file: Path | None
    """Its time is renewed each second while the event loop of a worker or sweeper turns."""
    log: LogFormat
    privacy: Privacy
    provider_keys: Mapping[str, str] = field(repr=False)
    """Every variable `REGATE_KEY_…`, from the environment or `.env`."""
    sources: Mapping[str, Source] = field(repr=False)

    @classmethod
    def load(
        cls,
        environ: Mapping[str, str],
        env_file: Path | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> Self:
        """Read every setting: `overrides` (flags, by the variable's name) over `environ` over `env_file`.

        An empty value counts as given and means the default, so that an empty variable can switch off what
        `.env` switches on. A missing `env_file` is an empty one; `$NAME` in it stays as it is.

        Errors: `SettingsError` for the first setting that cannot be used.
        """
        _refuse_unknown(overrides or {})
        flags = _Layer(source="flag", values=overrides or {})
        environment = _Layer(source="environment", values=environ)
        file = _Layer(source=".env", values=_read_env_file(env_file))
        given = _Given((flags, environment, file))
        data_dir = given.read("REGATE_DATA_DIR", _path)
        return cls(
            data_dir=data_dir,
            database_url=given.read_or("REGATE_DATABASE_URL", _database_url, _sqlite_url(data_dir)),
            broker_url=given.read("REGATE_BROKER_URL", _broker_url),
            http=given.read("REGATE_HTTP", _http),
            keys_file=given.read_or("REGATE_KEYS_FILE", _path, data_dir / "keys.json"),
            tools=given.read("REGATE_TOOLS", _modules),
            max_runs=given.read("REGATE_MAX_RUNS", _count),
            lease_seconds=given.read("REGATE_LEASE_SECONDS", _lease),
            sweep_seconds=given.read("REGATE_SWEEP_SECONDS", _seconds),
            retry_seconds=given.read("REGATE_RETRY_SECONDS", _waits),
            files_root=given.read_or("REGATE_FILES_ROOT", _path, None),
            beat_file=given.read_or("REGATE_BEAT_FILE", _path, None),
            log=given.read("REGATE_LOG", _member_of(LogFormat)),
            privacy=given.read("REGATE_PRIVACY", _member_of(Privacy)),
            provider_keys=MappingProxyType(given.provider_keys()),
            sources=MappingProxyType(given.sources),
        )

    def rows(self) -> list[SettingRow]:
        """List all settings in the order of the documentation, then the provider keys by name, masked."""
        shown = {
            "REGATE_DATA_DIR": str(self.data_dir),
            "REGATE_DATABASE_URL": _masked(self.database_url),
            "REGATE_BROKER_URL": _masked(self.broker_url),
            "REGATE_HTTP": str(self.http),
            "REGATE_KEYS_FILE": str(self.keys_file),
            "REGATE_TOOLS": ",".join(self.tools),
            "REGATE_MAX_RUNS": str(self.max_runs),
            "REGATE_LEASE_SECONDS": f"{self.lease_seconds:.10g}",
            "REGATE_SWEEP_SECONDS": f"{self.sweep_seconds:.10g}",
            "REGATE_RETRY_SECONDS": ",".join(f"{wait:.10g}" for wait in self.retry_seconds),
            "REGATE_FILES_ROOT": str(self.files_root or ""),
            "REGATE_BEAT_FILE": str(self.beat_file or ""),
            "REGATE_LOG": self.log.value,
            "REGATE_PRIVACY": self.privacy.value,
        }
        shown |= dict.fromkeys(sorted(self.provider_keys), MASK)
        return [
            SettingRow(name=name, value=value, source=self.sources[name], secret=_is_secret(name))
            for name, value in shown.items()
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """The values that one place gives."""

    source: Source
    values: Mapping[str, str]


class _Given:
    """What was given where; remembers the source of everything that was read."""

    def __init__(self, layers: tuple[_Layer, ...]) -> None:
        """Take the layers, the strongest first."""
        self._layers = layers
        self.sources: dict[str, Source] = {}

    def read(self, name: str, parse: Callable[[str], T]) -> T:
        """Parse what was given, or else the written default."""
        return self._parse(name, self._find(name) or DEFAULTS[name], parse)

    def read_or(self, name: str, parse: Callable[[str], T], default: D) -> T | D:
        """Parse what was given, or else take `default`."""
        text = self._find(name)
        return self._parse(name, text, parse) if text else default

    def provider_keys(self) -> dict[str, str]:
        """Collect the provider keys by name; an empty one is none."""
        values = (layer.values for layer in self._layers if layer.source != "flag")
        names = {name for layer in values for name in layer if name.startswith(PROVIDER_KEY_PREFIX)}
        found = {name: self._find(name) for name in sorted(names)}
        return {name: key for name, key in found.items() if key}

    def _find(self, name: str) -> str:
        """Look `name` up in the strongest layer that has it, even if it is empty there."""
        for layer in self._layers:
            if name in layer.values:
                self.sources[name] = layer.source
                return layer.values[name].strip()
        self.sources[name] = "default"
        return ""

    @staticmethod
    def _parse(name: str, text: str, parse: Callable[[str], T]) -> T:
        try:
            return parse(text)
        except _BadValueError as error:
            raise SettingsError(name, error.problem) from None


# --- Where values come from ---------------------------------------------------------------------------------


def _read_env_file(path: Path | None) -> dict[str, str]:
    """Read `path` without touching the environment and without replacing `$NAME`; the last of equal names counts."""
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(path.name, f"cannot be read ({type(error).__name__})") from None
    values = {}
    for binding in parse_stream(io.StringIO(text)):
        if binding.error:
            raise SettingsError(path.name, f"line {binding.original.line} cannot be read")
        if binding.key is not None and binding.value is not None:
            values[binding.key] = binding.value
    return values


def _refuse_unknown(overrides: Mapping[str, str]) -> None:
    for name in overrides:
        if name not in DEFAULTS:
            raise SettingsError(name, "is not a setting")


# --- What a value may be ------------------------------------------------------------------------------------


class _BadValueError(Exception):
    """A value cannot be used; `_Given` knows of which setting."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:  # a `~name` of nobody here
        raise _BadValueError("names the home of an unknown user") from None


def _sqlite_url(data_dir: Path) -> str:
    if "?" in str(data_dir):  # would start the options of the URL
        raise SettingsError("REGATE_DATA_DIR", "must not hold a question mark")
    return f"sqlite:///{data_dir / 'regate.db'}"


def _database_url(text: str) -> str:
    scheme = _split_url(text).scheme.partition("+")[0]
    if scheme == "sqlite":
        file = text.partition(":///")[2].partition("?")[0]
        if file in ("", ":memory:") or "mode=memory" in text:
            raise _BadValueError("must name a file: what is in memory outlives no process and reaches no second")
    elif scheme != "postgresql":
        raise _BadValueError("must start with sqlite:/// or postgresql://")
    return text


def _broker_url(text: str) -> str:
    if text != EMBEDDED and _split_url(text).scheme not in ("redis", "rediss", "unix"):
        raise _BadValueError(f"must be {EMBEDDED} or start with redis://, rediss:// or unix://")
    return text


def _split_url(text: str) -> SplitResult:
    """Split a URL; a password with unescaped characters shows as a port that is no number."""
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018  raises if it is no number
    except ValueError:
        raise _BadValueError("is not a URL; special characters in a password must be percent-encoded") from None
    return parts


def _http(text: str) -> HttpAddress:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", text)
    if match is None:
        raise _BadValueError("must be HOST:PORT, as in 127.0.0.1:8321 or [::1]:8321")
    port = int(match[3])
    if port > 65_535:
        raise _BadValueError("has a port above 65535")
    return HttpAddress(host=match[1] or match[2], port=port)


def _modules(text: str) -> tuple[str, ...]:
    names = dict.fromkeys(_split_list(text))
    if not all(part.isidentifier() for name in names for part in name.split(".")):
        raise _BadValueError("must be names of modules, separated by commas")
    return tuple(names)


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,7}", text) or int(text) < 1:
        raise _BadValueError("must be a whole number from 1 to 9999999")
    return int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]*\.?[0-9]+", text):  # no sign, exponent, nan or infinity
        raise _BadValueError("must be a positive number of seconds, as in 5 or 0.5")
    seconds = float(text)
    if not 0 < seconds <= WEEK_SECONDS:
        raise _BadValueError(f"must be more than 0 and at most {WEEK_SECONDS:.0f} seconds")
    return seconds


def _lease(text: str) -> float:
    seconds = _seconds(text)
    if seconds < 1:  # below, a busy event loop loses runs that it still drives
        raise _BadValueError("must be at least 1 second")
    return seconds


def _waits(text: str) -> tuple[float, ...]:
    return tuple(_seconds(part) for part in _split_list(text))


def _split_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


def _member_of(choices: type[E]) -> Callable[[str], E]:
    def parse(text: str) -> E:
        try:
            return choices(text)
        except ValueError:
            raise _BadValueError(f"must be one of {', '.join(choices)}") from None

    return parse


# --- What may be shown --------------------------------------------------------------------------------------


def _is_secret(name: str) -> bool:
    """Tell whether the setting can hold a secret."""
    return name.endswith("_URL") or name.startswith(PROVIDER_KEY_PREFIX)


def _masked(url: str) -> str:
    """Hide the password and options that can be one; rather too much than too little."""
    scheme, separator, rest = url.partition("://")
    rest = re.sub(r"([?&][^=&]*(?:pass|pwd|secret|token|key|auth)[^=&]*=)[^&]*", rf"\1{MASK}", rest, flags=re.I)
    login, at, place = rest.rpartition("@")  # the last one, since a password may hold one
    user, colon, _ = login.partition(":")
    return f"{scheme}{separator}{user}{colon and colon + MASK}{at}{place}"
