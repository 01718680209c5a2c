"""The schema: one definition for SQLite and PostgreSQL. Constraints repeat the invariants of the machine.

Columns named payload, text, body, prompt hold sealed bytes; `SEALED` lists them, and nothing else may hold content.
Times are seconds since the epoch by the database's clock.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from codec.vocabulary import ActorKind, ExposureState, Origin, RunStatus, TerminationReason

__all__ = [
    "SEALED",
    "actor",
    "api_key",
    "audit",
    "catalogue_version",
    "configuration",
    "configuration_skill",
    "configuration_snippet",
    "doc",
    "egress",
    "exposure",
    "inbox",
    "journal",
    "key_ring",
    "metadata",
    "policy",
    "process",
    "provider",
    "run",
    "run_source",
    "skill",
    "snippet",
    "tool_switch",
]

metadata: Final = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_Big: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite makes row ids only for a column declared exactly INTEGER."""


def _words(column: str, words: type[RunStatus | TerminationReason | Origin | ExposureState | ActorKind]) -> str:
    return f"{column} IN ({', '.join(repr(w.value) for w in words)})"


run: Final = sa.Table(
    "run",
    metadata,
    sa.Column("uid", _Big, primary_key=True, autoincrement=True),
    sa.Column("uuid", sa.Text, nullable=False, unique=True),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("head", sa.LargeBinary, nullable=False),
    sa.Column("token", sa.Text),
    sa.Column("holder", sa.Text),
    sa.Column("segment", sa.Integer, nullable=False, server_default="0"),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("due_at", sa.Double),
    sa.Column("woken_at", sa.Double),
    sa.Column("cause", sa.Text),
    sa.Column("question", sa.Text),
    sa.Column("question_kind", sa.Text),
    sa.Column("question_number", sa.Integer),
    sa.Column("expires_at", sa.Double),
    sa.Column("answered_by", sa.Text),
    sa.Column("blocked", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("rounds", sa.Integer, nullable=False, server_default="0"),
    sa.Column("input_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("output_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("high_water", sa.Text),
    sa.Column("wrapped_key", sa.LargeBinary),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("doc_version", sa.Integer, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("configuration_uid", sa.BigInteger, nullable=False),
    sa.Column("configuration", sa.Text, nullable=False),
    sa.Column("idempotency", sa.Text),
    sa.Column("body", sa.Text),
    sa.Column("lineage_run", sa.Text),
    sa.Column("lineage_at", sa.BigInteger),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
    sa.Column("finished_at", sa.Double),
    sa.UniqueConstraint("owner", "idempotency"),
    sa.CheckConstraint(_words("status", RunStatus), name="status"),
    sa.CheckConstraint(_words("origin", Origin), name="origin"),
    sa.CheckConstraint(f"reason IS NULL OR {_words('reason', TerminationReason)}", name="reason"),
    # Who runs holds a token and a lease; a cancelled run keeps the token until its closing entry.
    sa.CheckConstraint(
        "(status = 'running' AND token IS NOT NULL AND due_at IS NOT NULL)"
        " OR status = 'cancelled' OR (status <> 'running' AND token IS NULL)",
        name="lease",
    ),
    sa.CheckConstraint(
        "status NOT IN ('waiting_for_approval', 'waiting_for_input') OR question IS NOT NULL", name="question"
    ),
    sa.CheckConstraint(
        "(status IN ('completed', 'failed')) = (finished_at IS NOT NULL AND status <> 'cancelled')"
        " OR status = 'cancelled'",
        name="finished",
    ),
)
sa.Index(
    "ix_run_due_at", run.c.due_at, postgresql_where=run.c.due_at.is_not(None), sqlite_where=run.c.due_at.is_not(None)
)
sa.Index("ix_run_status_uid", run.c.status, run.c.uid)
sa.Index("ix_run_configuration_uid", run.c.configuration_uid)

doc: Final = sa.Table(
    "doc",
    metadata,
    sa.Column("run_uid", sa.BigInteger, sa.ForeignKey("run.uid"), primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
    sa.CheckConstraint("kind IN ('request', 'state', 'base')", name="kind"),
)

journal: Final = sa.Table(
    "journal",
    metadata,
    sa.Column("run_uid", sa.BigInteger, sa.ForeignKey("run.uid"), primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("segment", sa.Integer, nullable=False),
    sa.Column("token", sa.Text, nullable=False),
    sa.Column("policy_version", sa.BigInteger, nullable=False),
    sa.Column("prev", sa.LargeBinary, nullable=False),
    sa.Column("meta", sa.Text, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

inbox: Final = sa.Table(
    "inbox",
    metadata,
    sa.Column("run_uid", sa.BigInteger, sa.ForeignKey("run.uid"), primary_key=True),
    sa.Column("question", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("decided_by", sa.Text, nullable=False),
    sa.Column("via", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
    sa.Column("consumed_seq", sa.BigInteger),
    sa.CheckConstraint("kind IN ('decision', 'input', 'outcome')", name="kind"),
)

run_source: Final = sa.Table(
    "run_source",
    metadata,
    sa.Column("run_uid", sa.BigInteger, sa.ForeignKey("run.uid"), primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("source_uid", sa.BigInteger, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("seen", sa.Text),
    sa.Column("text_hash", sa.Text, nullable=False),
)
sa.Index("ix_run_source_kind_source_uid", run_source.c.kind, run_source.c.source_uid)

exposure: Final = sa.Table(
    "exposure",
    metadata,
    sa.Column("run_uid", sa.BigInteger, sa.ForeignKey("run.uid"), primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("source_uid", sa.BigInteger, primary_key=True),
    sa.Column("data_class", sa.Text, primary_key=True, comment="empty = declared nothing"),
    sa.Column("provider_uid", sa.BigInteger, primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("zone", sa.Text, primary_key=True),
    sa.Column("identifier", sa.Text, nullable=False),
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("provider", sa.Text, nullable=False),
    sa.Column("mode", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("first_at", sa.Double, nullable=False),
    sa.Column("last_at", sa.Double, nullable=False),
    sa.Column("sends", sa.Integer, nullable=False),
    sa.CheckConstraint(_words("state", ExposureState), name="state"),
)
sa.Index("ix_exposure_kind_source_uid", exposure.c.kind, exposure.c.source_uid)
sa.Index("ix_exposure_provider_uid", exposure.c.provider_uid)

audit: Final = sa.Table(
    "audit",
    metadata,
    sa.Column("uid", _Big, primary_key=True, autoincrement=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("run", sa.Text),
    sa.Column("decision", sa.Text, nullable=False),
    sa.Column("mode", sa.Text),
    sa.Column("source", sa.Text),
    sa.Column("data_class", sa.Text),
    sa.Column("zone", sa.Text),
    sa.Column("ceiling", sa.Text),
    sa.Column("provider", sa.Text),
    sa.Column("configuration", sa.Text),
    sa.Column("tool", sa.Text),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("via", sa.Text, nullable=False),
    sa.Column("detail", sa.Text),
)
sa.Index("ix_audit_run", audit.c.run)
sa.Index("ix_audit_at", audit.c.at)

process: Final = sa.Table(
    "process",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("started_at", sa.Double, nullable=False),
    sa.Column("beat_at", sa.Double, nullable=False),
)

key_ring: Final = sa.Table(
    "key_ring",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("check_value", sa.Text, nullable=False),
    sa.Column("active", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
)

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
        sa.Column("uid", _Big, primary_key=True, autoincrement=True),
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
    sa.Column("uid", _Big, primary_key=True, autoincrement=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("enabled", sa.Boolean, nullable=False),
    sa.Column("admin", sa.Boolean, nullable=False),
    sa.Column("groups", sa.Text, nullable=False, comment="JSON list"),
    sa.Column("grants", sa.Text, nullable=False, comment="JSON list"),
    sa.Column("scopes", sa.Text, nullable=False, comment="JSON list"),
    sa.Column("max_class", sa.Text),
    sa.CheckConstraint(_words("kind", ActorKind), name="kind"),
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

SEALED: Final = (
    (doc, "payload"),
    (journal, "payload"),
    (inbox, "payload"),
    (configuration, "prompt"),
    (snippet, "text"),
    (skill, "body"),
)
"""Every column that holds content, sealed. A test checks that no other column ever shows a planted marker."""
