"""Errors of the codec.

    CodecError              a document is malformed: `path` is the place, `problem` a stable word
    └── SchemaTooNewError   a document of a version that this build does not know; leave it in place

No error of this package ever carries a value that was read: a message holds a path, a stable word and numbers.
"""

from __future__ import annotations

__all__ = ["CodecError", "SchemaTooNewError"]


class CodecError(ValueError):
    """A stored or received document cannot be read.

    Shape: `document` names the kind (`request`, `state`, `entry` …), `path` is a JSONPath such as
    `$.forced_snippet_uids[1]`, `problem` is one stable word or short phrase without any content.
    """

    def __init__(self, document: str, path: str, problem: str) -> None:
        super().__init__(f"{document} {path}: {problem}")
        self.document = document
        self.path = path
        self.problem = problem


class SchemaTooNewError(CodecError):
    """A document was written by a newer build. It stays where it is, for a worker that knows it."""

    def __init__(self, document: str, version: int, known: int) -> None:
        super().__init__(document, "$.version", f"version {version} is newer than {known}")
        self.version = version
