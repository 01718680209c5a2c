"""Texts of catalogue records, sealed in their rows: one random data key per text, and a keyed hash beside it.

Shape of a place: purpose `text`, owner `kind:uid`, index `text`. So a text opens in its own row only.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from worker.adapters.sql.catalogue_fields import Field, Kind, Shape
from worker.ports.runs import StoreError
from worker.ports.sealing import Sealer, SealingError, WrappedKey

__all__ = ["open_text", "seal_text", "text_field", "text_hash"]

_PURPOSE: Final = "text"
_INDEX: Final = "text"


def text_field(kind: Kind) -> Field:
    """Give the field of a kind that has a text."""
    return next(f for f in kind.fields.values() if f.shape is Shape.TEXT)


def text_hash(sealer: Sealer, kind: Kind, text: str) -> str:
    """Hash a text as runs hash what was injected. An empty prompt is no text and has no hash."""
    if kind.name == "configuration" and not text:
        return ""
    return sealer.keyed_hash(_PURPOSE, text.encode())


def seal_text(sealer: Sealer, key: WrappedKey, kind: Kind, uid: int, text: str) -> dict[str, Any]:
    """Give the columns that hold this text in the row `uid`, sealed under a key made for it alone."""
    field = text_field(kind)
    sealed = sealer.seal(key.key, _PURPOSE, f"{kind.name}:{uid}", _INDEX, text.encode())
    return {
        field.column: sealed,
        field.hash_column: text_hash(sealer, kind, text),
        "wrapped_key": key.wrapped,
        "key_id": key.key_id,
    }


def open_text(sealer: Sealer, kind: Kind, row: sa.RowMapping) -> str:
    """Open the text of a row.

    Errors: `StoreError` when it cannot be opened, is another row's, or is not what the row's hash stands for: with a
    wrong hash a changed text would pass for the one that a run carries.
    """
    field = text_field(kind)
    text: str | None = None
    try:
        key = sealer.unwrap(row["wrapped_key"], row["key_id"])
        data = sealer.open(key, _PURPOSE, f"{kind.name}:{row['uid']}", _INDEX, row[field.column])
        text = data.decode()
    except (SealingError, UnicodeDecodeError, TypeError):  # TypeError: a cell that holds no bytes
        pass
    # Raised out here, so that no cause and no local of a sealer hangs on it.
    if text is None or text_hash(sealer, kind, text) != row[field.hash_column]:
        raise StoreError("unreadable")
    return text
