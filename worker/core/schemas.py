"""JSON Schema validation of arguments and of human input. Deterministic: no remote or file reference is ever read."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NoReturn

import jsonschema_rs

__all__ = ["is_valid", "overlay", "properties_of", "without_properties"]


def is_valid(schema: str, value: object) -> bool:
    """Whether a value fits a schema given as JSON text. An unusable schema fits nothing. Total."""
    try:
        return bool(_validator(schema).is_valid(value))
    except (ValueError, RecursionError, OverflowError):
        return False


def properties_of(schema: str | None) -> tuple[str, ...]:
    """Give the names that an object schema declares at its top level."""
    declared = None if schema is None else _loaded(schema).get("properties")
    return tuple(declared) if isinstance(declared, dict) else ()


def without_properties(schema: str, names: tuple[str, ...]) -> str:
    """Give the schema without these top-level properties, so that what a person supplies is not asked of the model."""
    loaded = _loaded(schema)
    if not names or not loaded:
        return schema
    declared = loaded.get("properties")
    if isinstance(declared, dict):
        loaded["properties"] = {k: v for k, v in declared.items() if k not in names}
    required = loaded.get("required")
    if isinstance(required, list):
        loaded["required"] = [name for name in required if name not in names]
    return json.dumps(loaded)


def overlay(arguments: dict[str, Any], schema: str, supplied: dict[str, Any]) -> dict[str, Any]:
    """Put a person's values over a model's: only declared keys are taken, and for those only the person counts."""
    names = properties_of(schema)
    kept = {key: value for key, value in arguments.items() if key not in names}
    return {**kept, **{key: value for key, value in supplied.items() if key in names}}


def _loaded(schema: str) -> dict[str, Any]:
    try:
        loaded = json.loads(schema)
    except (ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


@lru_cache(maxsize=512)
def _validator(schema: str) -> Any:
    return jsonschema_rs.validator_for(json.loads(schema), retriever=_refuse)


def _refuse(_: str) -> NoReturn:
    raise ValueError("a schema may not refer to another document")
