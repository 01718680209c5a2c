"""What all tables share: naming, types, and the words that a column may hold."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from codec.vocabulary import ActorKind, ExposureState, Origin, RunStatus, TerminationReason

__all__ = ["BIG", "metadata", "words"]

metadata: Final = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
BIG: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite makes row ids only for a column declared exactly INTEGER."""


def words(column: str, words: type[RunStatus | TerminationReason | Origin | ExposureState | ActorKind]) -> str:
    """Build the condition that a column holds one of these words."""
    return f"{column} IN ({', '.join(repr(w.value) for w in words)})"
