"""The one list of columns that hold content, all of it sealed."""

from __future__ import annotations

from typing import Final

from worker.adapters.sql.catalogue_tables import configuration, skill, snippet
from worker.adapters.sql.tables import doc, inbox, journal

__all__ = ["SEALED"]

SEALED: Final = (
    (doc, "payload"),
    (journal, "payload"),
    (inbox, "payload"),
    (configuration, "prompt"),
    (snippet, "text"),
    (skill, "body"),
)
"""Every column that holds content, sealed. A test checks that no other column ever shows a planted marker."""
