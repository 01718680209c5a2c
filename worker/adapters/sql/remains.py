"""What a SQLite file keeps of what was overwritten: pages in the write-ahead log, and copies inside of the file.

`secure_delete` (see `sqlite`) overwrites with zeros whatever is deleted. Two places are left. The log holds older pages
until it is started anew. And a page of a table whose rows outgrew it is laid out anew, which leaves copies of rows
between the rows: of 4,000 keys that were destroyed 5 were still in the file (SQLite 3.40, measured). Only writing the
whole file anew, as VACUUM does, is free of them.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import sqlalchemy as sa

from worker.ports.keeping import KeepingError

__all__ = ["SqliteFile"]

_WAIT_S: Final = 30.0
"""Seconds for those that read or write to let it through: as long as any of their statements may take."""


@dataclass(frozen=True, slots=True)
class SqliteFile:
    """The file of a database that others have open."""

    path: Path
    wait_s: float = _WAIT_S

    @classmethod
    def of(cls, url: str) -> Self | None:
        """Give the file of a database's URL; None on a server and in memory."""
        parsed = sa.make_url(url)
        is_file = parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:")
        return cls(Path(str(parsed.database))) if is_file else None

    def size(self) -> int:
        """Bytes of the file, without its log."""
        return self.path.stat().st_size

    def wipe(self, *, compact: bool) -> None:
        """Move the log into the file and cut it to nothing; with `compact` write the file anew first. Blocks.

        Locks: writers wait meanwhile, with `compact` for about a second per 100 MB; readers do not. It needs as much
        room again on the disk. Errors: `KeepingError`; nothing is lost then, and it may be called again.
        """
        failure: KeepingError | None = None
        try:
            with closing(sqlite3.connect(self.path, timeout=self.wait_s, isolation_level=None)) as connection:
                connection.execute("PRAGMA secure_delete = ON")
                if compact:
                    connection.execute("VACUUM")
                busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.Error as error:
            failure = KeepingError("not_wiped", f"the database's file cannot be cleaned: {_problem(error)}")
        else:
            if busy:
                failure = KeepingError("not_wiped", "somebody reads the database without a pause; clean its file later")
        if failure is not None:
            raise failure


def _problem(error: sqlite3.Error) -> str:
    # By its code: a message may hold what a statement held.
    return {
        sqlite3.SQLITE_FULL: "the disk is full",
        sqlite3.SQLITE_BUSY: "it is busy",
        sqlite3.SQLITE_LOCKED: "it is busy",
    }.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "the disk failed")
