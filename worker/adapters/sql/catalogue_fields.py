"""The kinds of catalogue records and their fields: one description for files, writes, lists and exports.

Nothing here talks to a database. A refusal names kind, identifier and field, never a field's value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final

from codec.vocabulary import Enforcement, TrustZone
from worker.adapters.sql import catalogue_values as values
from worker.ports.catalogue import CatalogueError, RecordSpec

__all__ = [
    "KINDS",
    "LOCAL_VIAS",
    "POLICY",
    "PROVIDER_KINDS",
    "Checked",
    "Field",
    "Kind",
    "Shape",
    "check_identifier",
    "check_record",
    "check_records",
    "check_value",
    "kind_named",
    "quoted",
    "record_name",
]

POLICY: Final = "policy"
"""The one policy's kind, and its identifier wherever one must stand."""
PROVIDER_KINDS: Final = ("openai", "scripted")
LOCAL_VIAS: Final = frozenset({"cli", "python"})
"""Ways in that hold the machine itself. Whoever comes another way may not name a file of it; an unknown way neither."""
_SHOWABLE: Final = re.compile(r"[A-Za-z0-9_.:\[\]-]{1,64}")


class Shape(Enum):
    """How a field is stored."""

    PLAIN = auto()  # one column
    NAMES = auto()  # a JSON list in one column
    TEXT = auto()  # sealed, with its keyed hash in `hash_column`
    LINKS = auto()  # rows of a table of links, in order


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field. `default` counts where it is left out or cleared; `required` = it has none.

    Shape: `column` is where it is stored; `refers` the kind whose identifiers it names. `local` = not settable from
    afar. `always` = exported even when it has its default, because a reader must see it.
    """

    name: str
    check: values.Check
    column: str
    default: Any = None
    shape: Shape = Shape.PLAIN
    hash_column: str = ""
    refers: str | None = None
    required: bool = False
    local: bool = False
    always: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind. `key` is what a file calls the identifier, empty where there is none; `soft` records have uids."""

    name: str
    key: str
    identify: values.Check
    fields: Mapping[str, Field]
    soft: bool = True

    @property
    def text(self) -> Field | None:
        """The field that holds the record's text, if it has one."""
        return next((f for f in self.fields.values() if f.shape is Shape.TEXT), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A record whose fields are known and hold possible values. `given` None for a field = clear it."""

    kind: Kind
    identifier: str
    given: Mapping[str, Any] = field(repr=False)  # may hold a text
    line: int | None = None

    @property
    def name(self) -> str:
        """What refusals, the audit and answers call the record."""
        return record_name(self.kind.name, self.identifier)

    def error(self, problem: str, *, missing: bool = False) -> CatalogueError:
        """Build the refusal of this record."""
        return CatalogueError(f"{self.name}: {problem}", self.line, missing=missing)


def _field(name: str, check: values.Check, default: Any = None, **more: Any) -> Field:
    return Field(**({"name": name, "check": check, "default": default, "column": name} | more))


def _kind(name: str, *fields: Field, key: str = "identifier", identify: values.Check, soft: bool = True) -> Kind:
    by_name = MappingProxyType({f.name: f for f in fields})
    return Kind(name=name, key=key, identify=identify, fields=by_name, soft=soft)


def _policy_name(value: object) -> str:
    if value not in ("", POLICY):
        raise values.BadValueError("has no identifier")
    return POLICY


_ZONE: Final = _field("trust_zone", values.zone, TrustZone.EXTERNAL_GLOBAL.value, always=True)
_COUNT: Final = values.number(0, values.INT32_MAX)

KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            _kind(
                POLICY,
                _field(
                    "data_class_enforcement",
                    values.enforcement,
                    Enforcement.ENFORCE.value,
                    column="value",
                    always=True,
                ),
                key="",
                identify=_policy_name,
                soft=False,
            ),
            _kind(
                "provider",
                _field("kind", values.one_of(PROVIDER_KINDS), required=True),
                _field("base_url", values.base_url),
                _field("api_key_env", values.key_variable),
                _ZONE,
                _field("max_concurrency", _COUNT, 0),
                _field("requests_per_minute", _COUNT, 0),
                _field("script", values.absolute_path, local=True),
                identify=values.identifier,
            ),
            _kind(
                "configuration",
                _field("provider", values.identifier, required=True, refers="provider"),
                _field("model", values.line, required=True),
                _field("system_prompt", values.text, "", shape=Shape.TEXT, column="prompt", hash_column="prompt_hash"),
                _field("system_prompt_data_class", values.data_class, column="prompt_class"),
                _field("snippets", values.names(values.identifier), (), shape=Shape.LINKS, refers="snippet"),
                _field("skills", values.names(values.identifier), (), shape=Shape.LINKS, refers="skill"),
                _field("fallbacks", values.fallbacks, (), shape=Shape.NAMES, refers="configuration"),
                _field("allowed_tool_groups", values.names(values.group), (), shape=Shape.NAMES),
                _field("require_second_approver", values.flag, False),
                _field("approval_ttl_s", _COUNT, 0),
                _field("max_iterations", values.number(1, 200), 10),
                _field("max_total_tokens", values.number(0, values.INT64_MAX), 0),
                _field("max_duration_s", _COUNT, 0),
                _field("context_length", _COUNT, 128_000),
                identify=values.identifier,
            ),
            _kind(
                "snippet",
                _field("label", values.line, ""),
                _field("text", values.text, "", shape=Shape.TEXT, hash_column="text_hash"),
                _field("data_class", values.data_class),
                _field("active", values.flag, True),
                identify=values.identifier,
            ),
            _kind(
                "skill",
                _field("name", values.line, ""),
                _field("body", values.text, "", shape=Shape.TEXT, hash_column="text_hash"),
                _field("data_class", values.data_class),
                _field("enabled", values.flag, True),
                _field("allowed_tools", values.names(values.tool_name), shape=Shape.NAMES),
                identify=values.identifier,
            ),
            _kind("tool", _field("enabled", values.flag, True), key="name", identify=values.tool_name, soft=False),
            _kind("egress", _ZONE, key="host", identify=values.host, soft=False),
        )
    }
)
"""In the order of a file: what others name comes after what names it only where people read it so."""


def record_name(kind: str, identifier: str) -> str:
    """Name a record: `kind identifier`; the policy is only itself."""
    return kind if kind == POLICY else f"{kind} {identifier}"


def quoted(word: object) -> str:
    """Show a word of an editor where it can only be a name; anything else may be content and is left out."""
    return f' "{word}"' if isinstance(word, str) and _SHOWABLE.fullmatch(word) else ""


def kind_named(name: str, line: int | None = None) -> Kind:
    """Find a kind. Errors: `CatalogueError`."""
    try:
        return KINDS[name]
    except KeyError:
        raise CatalogueError(f"there is no kind{quoted(name)}", line) from None


def check_identifier(kind: Kind, value: object, line: int | None = None) -> str:
    """Check and normalise the identifier of a record. Errors: `CatalogueError`."""
    try:
        return str(kind.identify(value))
    except values.BadValueError as error:
        raise CatalogueError(f"{kind.name}{quoted(value)}: {kind.key or 'it'} {error.problem}", line) from error


def check_value(kind: Kind, identifier: str, name: str, value: object, line: int | None = None) -> Any:
    """Check and normalise one field; None clears it. Errors: `CatalogueError` naming record and field."""
    known = kind.fields.get(name)
    where = record_name(kind.name, identifier)
    if known is None:
        raise CatalogueError(f"{where}: there is no field{quoted(name)}", line)
    if value is None:
        if known.required:
            raise CatalogueError(f"{where}: {name} cannot be cleared", line)
        return None
    try:
        found = known.check(value)
    except values.BadValueError as error:
        raise CatalogueError(f"{where}: {name} {error.problem}", line) from error
    if known.required and found == "":
        raise CatalogueError(f"{where}: {name} must not be empty", line)
    return found


def check_record(spec: RecordSpec) -> Checked:
    """Check kind, identifier and every given field of one record by itself. Errors: `CatalogueError`."""
    kind = kind_named(spec.kind, spec.line)
    identifier = check_identifier(kind, spec.identifier, spec.line)
    given = {name: check_value(kind, identifier, name, value, spec.line) for name, value in spec.fields.items()}
    return Checked(kind=kind, identifier=identifier, given=given, line=spec.line)


def check_records(specs: Sequence[RecordSpec]) -> list[Checked]:
    """Check records of one write. Errors: `CatalogueError`, also when one is named twice."""
    found: dict[tuple[str, str], Checked] = {}
    for spec in specs:
        record = check_record(spec)
        if (record.kind.name, record.identifier) in found:
            raise record.error("is named twice")
        found[record.kind.name, record.identifier] = record
    return list(found.values())
