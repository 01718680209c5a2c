"""Tables of the catalogue and of actors. Columns named text, body and prompt hold sealed bytes."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from codec.vocabulary import ActorKind
from worker.adapters.sql.schema import BIG, metadata, words

__all__ = [
    "actor",
    "api_key",
    "catalogue_version",
    "configuration",
    "configuration_skill",
    "configuration_snippet",
    "egress",
    "policy",
    "provider",
    "skill",
    "snippet",
    "tool_switch",
]

catalogue_version: Final = sa.Table(
    "catalogue_version",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.CheckConstraint("id = 1", name="single"),
)

policy: Final = sa.Table(
    "policy",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)


def _record(name: str, *columns: sa.Column[object], label: str = "identifier") -> sa.Table:
    """Build a catalogue table: a uid that is never reused, an identifier unique among the living, soft deletion."""
    table = sa.Table(
        name,
        metadata,
        sa.Column("uid", BIG, primary_key=True, autoincrement=True),
        sa.Column("identifier", sa.Text, nullable=False),
        *columns,
        sa.Column("deleted_at", sa.Double),
        sqlite_autoincrement=True,
    )
    living = table.c.deleted_at.is_(None)
    sa.Index(f"uq_{name}_{label}", table.c.identifier, unique=True, postgresql_where=living, sqlite_where=living)
    return table


provider: Final = _record(
    "provider",
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("base_url", sa.Text),
    sa.Column("api_key_env", sa.Text),
    sa.Column("trust_zone", sa.Text, nullable=False),
    sa.Column("max_concurrency", sa.Integer, nullable=False),
    sa.Column("requests_per_minute", sa.Integer, nullable=False),
    sa.Column("script", sa.Text),
)

configuration: Final = _record(
    "configuration",
    sa.Column("provider", sa.Text, nullable=False, comment="a provider's identifier"),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("prompt", sa.LargeBinary, nullable=False),
    sa.Column("prompt_hash", sa.Text, nullable=False, comment="empty = the prompt has no text"),
    sa.Column("prompt_class", sa.Text),
    sa.Column("wrapped_key", sa.LargeBinary, nullable=False),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("fallbacks", sa.Text, nullable=False, comment="JSON list of configurations' identifiers"),
    sa.Column("allowed_tool_groups", sa.Text, nullable=False, comment="JSON list"),
    sa.Column("require_second_approver", sa.Boolean, nullable=False),
    sa.Column("approval_ttl_s", sa.Integer, nullable=False),
    sa.Column("max_iterations", sa.Integer, nullable=False),
    sa.Column("max_total_tokens", sa.BigInteger, nullable=False),
    sa.Column("max_duration_s", sa.Integer, nullable=False),
    sa.Column("context_length", sa.Integer, nullable=False),
)

snippet: Final = _record(
    "snippet",
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("text", sa.LargeBinary, nullable=False),
    sa.Column("text_hash", sa.Text, nullable=False),
    sa.Column("wrapped_key", sa.LargeBinary, nullable=False),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("data_class", sa.Text),
    sa.Column("active", sa.Boolean, nullable=False),
)

skill: Final = _record(
    "skill",
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("text_hash", sa.Text, nullable=False),
    sa.Column("wrapped_key", sa.LargeBinary, nullable=False),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("data_class", sa.Text),
    sa.Column("enabled", sa.Boolean, nullable=False),
    sa.Column("allowed_tools", sa.Text, comment="JSON list; NULL = says nothing"),
)


def _link(name: str, other: sa.Table) -> sa.Table:
    return sa.Table(
        name,
        metadata,
        sa.Column("configuration_uid", sa.BigInteger, sa.ForeignKey("configuration.uid"), primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column(f"{other.name}_uid", sa.BigInteger, sa.ForeignKey(f"{other.name}.uid"), nullable=False),
    )


configuration_snippet: Final = _link("configuration_snippet", snippet)
configuration_skill: Final = _link("configuration_skill", skill)

tool_switch: Final = sa.Table(
    "tool_switch",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("enabled", sa.Boolean, nullable=False),
)

egress: Final = sa.Table(
    "egress",
    metadata,
    sa.Column("host", sa.Text, primary_key=True),
    sa.Column("trust_zone", sa.Text, nullable=False),
)

actor: Final = sa.Table(
    "actor",
    metadata,
    sa.Column("uid", BIG, primary_key=True, autoincrement=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("enabled", sa.Boolean, nullable=False),
    sa.Column("admin", sa.Boolean, nullable=False),
    sa.Column("groups", sa.Text, nullable=False, comment="JSON list"),
    sa.Column("grants", sa.Text, nullable=False, comment="JSON list"),
    sa.Column("scopes", sa.Text, nullable=False, comment="JSON list"),
    sa.Column("max_class", sa.Text),
    sa.CheckConstraint(words("kind", ActorKind), name="kind"),
    sqlite_autoincrement=True,
)

api_key: Final = sa.Table(
    "api_key",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True, comment="SHA-256 of a key of 256 random bits"),
    sa.Column("actor_uid", sa.BigInteger, sa.ForeignKey("actor.uid"), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("revoked_at", sa.Double),
)
