"""Many rows as one parameter: a FROM clause made of arrays (PostgreSQL) or of one JSON text (SQLite).

So the statement's text does not depend on the number of rows, and is compiled and planned once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

__all__ = ["Batch"]

_PARAMETER: Final = "batch"
_SUSPECT: Final = re.compile(r"\\u0000|[0-9]{19}")
"""What JSON could carry into SQLite though no column holds it. It is rare, so only then every value is looked at."""


class Batch:
    """A virtual table of given columns."""

    def __init__(self, **columns: type[sa.types.TypeEngine[Any]]) -> None:
        """Name the columns and their types, in the order of the rows' values."""
        self._columns = columns

    def source(self, dialect: str) -> sa.FromClause:
        """Build the FROM clause, named `b`, with a column for each name."""
        return self._json() if dialect == "sqlite" else self._arrays()

    def parameters(self, dialect: str, rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
        """Give the parameters that `source` needs for these rows.

        Errors: `UnicodeError` and `OverflowError` on SQLite, for what a text or an integer of 64 bits cannot hold;
        PostgreSQL's driver refuses the same.
        """
        if dialect == "sqlite":
            return {_PARAMETER: self._encoded(rows)}
        columns = zip(*rows, strict=True)
        return {f"{_PARAMETER}_{name}": list(values) for name, values in zip(self._columns, columns, strict=True)}

    def _encoded(self, rows: Sequence[tuple[Any, ...]]) -> str:
        binary = [position for position, kind in enumerate(self._columns.values()) if kind is sa.LargeBinary]
        plain = [list(row) for row in rows]
        for values in plain:
            for position in binary:
                values[position] = values[position].hex()
        encoded = msgspec.json.encode(plain).decode()
        if _SUSPECT.search(encoded) is not None:
            _check(rows)
        return encoded

    def _json(self) -> sa.FromClause:
        each = sa.func.json_each(sa.bindparam(_PARAMETER, type_=sa.Text)).table_valued("value", name="each")
        columns = []
        for position, (name, kind) in enumerate(self._columns.items()):
            value: sa.ColumnElement[Any] = sa.func.json_extract(
                each.c.value, sa.literal_column(f"'$[{position}]'"), type_=kind
            )
            if kind is sa.LargeBinary:
                value = sa.func.regate_bytes(value, type_=kind)
            columns.append(value.label(name))
        return sa.select(*columns).subquery("b")

    def _arrays(self) -> sa.FromClause:
        arrays = [
            sa.bindparam(f"{_PARAMETER}_{name}", type_=ARRAY(kind, dimensions=1))
            for name, kind in self._columns.items()
        ]
        columns = [sa.column(name, kind) for name, kind in self._columns.items()]
        return sa.func.unnest(*arrays).table_valued(*columns, name="b").render_derived(name="b")


def _check(rows: Sequence[tuple[Any, ...]]) -> None:
    for value in (value for row in rows for value in row):
        if isinstance(value, str) and "\x00" in value:
            raise UnicodeError  # it would end the text unseen
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise OverflowError  # it would become a float
