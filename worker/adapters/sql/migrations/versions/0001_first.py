"""The first schema: runs and their journals, the catalogue, actors, keys and processes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
LIVING = sa.text("deleted_at IS NULL")
DUE = sa.text("due_at IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "actor",
        sa.Column("uid", BIG, autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("admin", sa.Boolean(), nullable=False),
        sa.Column("groups", sa.Text(), nullable=False, comment="JSON list"),
        sa.Column("grants", sa.Text(), nullable=False, comment="JSON list"),
        sa.Column("scopes", sa.Text(), nullable=False, comment="JSON list"),
        sa.Column("max_class", sa.Text()),
        sa.CheckConstraint("kind IN ('user', 'service', 'anonymous', 'local')", name=op.f("ck_actor_kind")),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_actor")),
        sa.UniqueConstraint("name", name=op.f("uq_actor_name")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "audit",
        sa.Column("uid", BIG, autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("run", sa.Text()),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text()),
        sa.Column("source", sa.Text()),
        sa.Column("data_class", sa.Text()),
        sa.Column("zone", sa.Text()),
        sa.Column("ceiling", sa.Text()),
        sa.Column("provider", sa.Text()),
        sa.Column("configuration", sa.Text()),
        sa.Column("tool", sa.Text()),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("via", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text()),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_index("ix_audit_run", "audit", ["run"])
    op.create_table(
        "catalogue_version",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_catalogue_version_single")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_catalogue_version")),
    )
    op.create_table(
        "configuration",
        sa.Column("uid", BIG, autoincrement=True, nullable=False),
        sa.Column("identifier", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False, comment="a provider's identifier"),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("prompt", sa.LargeBinary(), nullable=False),
        sa.Column("prompt_hash", sa.Text(), nullable=False, comment="empty = the prompt has no text"),
        sa.Column("prompt_class", sa.Text()),
        sa.Column("wrapped_key", sa.LargeBinary(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("fallbacks", sa.Text(), nullable=False, comment="JSON list of configurations' identifiers"),
        sa.Column("allowed_tool_groups", sa.Text(), nullable=False, comment="JSON list"),
        sa.Column("require_second_approver", sa.Boolean(), nullable=False),
        sa.Column("approval_ttl_s", sa.Integer(), nullable=False),
        sa.Column("max_iterations", sa.Integer(), nullable=False),
        sa.Column("max_total_tokens", sa.BigInteger(), nullable=False),
        sa.Column("max_duration_s", sa.Integer(), nullable=False),
        sa.Column("context_length", sa.Integer(), nullable=False),
        sa.Column("deleted_at", sa.Double()),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_configuration")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "uq_configuration_identifier",
        "configuration",
        ["identifier"],
        unique=True,
        postgresql_where=LIVING,
        sqlite_where=LIVING,
    )
    op.create_table(
        "egress",
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("trust_zone", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("host", name=op.f("pk_egress")),
    )
    op.create_table(
        "key_ring",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("check_value", sa.Text(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_key_ring")),
    )
    op.create_table(
        "policy",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_policy")),
    )
    op.create_table(
        "process",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("beat_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_process")),
    )
    op.create_table(
        "provider",
        sa.Column("uid", BIG, autoincrement=True, nullable=False),
        sa.Column("identifier", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("base_url", sa.Text()),
        sa.Column("api_key_env", sa.Text()),
        sa.Column("trust_zone", sa.Text(), nullable=False),
        sa.Column("max_concurrency", sa.Integer(), nullable=False),
        sa.Column("requests_per_minute", sa.Integer(), nullable=False),
        sa.Column("script", sa.Text()),
        sa.Column("deleted_at", sa.Double()),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_provider")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "uq_provider_identifier", "provider", ["identifier"], unique=True, postgresql_where=LIVING, sqlite_where=LIVING
    )
    op.create_table(
        "run",
        sa.Column("uid", BIG, autoincrement=True, nullable=False),
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("head", sa.LargeBinary(), nullable=False),
        sa.Column("token", sa.Text()),
        sa.Column("holder", sa.Text()),
        sa.Column("segment", sa.Integer(), server_default="0", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("due_at", sa.Double()),
        sa.Column("woken_at", sa.Double()),
        sa.Column("cause", sa.Text()),
        sa.Column("question", sa.Text()),
        sa.Column("question_kind", sa.Text()),
        sa.Column("question_number", sa.Integer()),
        sa.Column("expires_at", sa.Double()),
        sa.Column("answered_by", sa.Text()),
        sa.Column("blocked", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("rounds", sa.Integer(), server_default="0", nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("high_water", sa.Text()),
        sa.Column("wrapped_key", sa.LargeBinary()),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("doc_version", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("configuration_uid", sa.BigInteger(), nullable=False),
        sa.Column("configuration", sa.Text(), nullable=False),
        sa.Column("idempotency", sa.Text()),
        sa.Column("body", sa.Text()),
        sa.Column("lineage_run", sa.Text()),
        sa.Column("lineage_at", sa.BigInteger()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.CheckConstraint(
            "(status = 'running' AND token IS NOT NULL AND due_at IS NOT NULL) OR status = 'cancelled' OR (status <> "
            "'running' AND token IS NULL)",
            name=op.f("ck_run_lease"),
        ),
        sa.CheckConstraint(
            "(status IN ('completed', 'failed', 'cancelled')) = (finished_at IS NOT NULL)", name=op.f("ck_run_finished")
        ),
        sa.CheckConstraint(
            "origin IN ('playground', 'cli', 'queue', 'api', 'fork', 'requeue')", name=op.f("ck_run_origin")
        ),
        sa.CheckConstraint(
            "reason IS NULL OR reason IN ('completed', 'max_iterations', 'budget_exhausted', 'context_truncated', "
            "'context_blocked', 'configuration_gone', 'policy_denied', 'expired', 'provider_failed', "
            "'retries_exhausted', 'not_retryable', 'outcome_unknown', 'corrupt', 'cancelled')",
            name=op.f("ck_run_reason"),
        ),
        sa.CheckConstraint(
            "status IN ('queued', 'running', 'waiting_for_approval', 'waiting_for_input', 'completed', 'failed', "
            "'cancelled')",
            name=op.f("ck_run_status"),
        ),
        sa.CheckConstraint(
            "status NOT IN ('waiting_for_approval', 'waiting_for_input') OR question IS NOT NULL",
            name=op.f("ck_run_question"),
        ),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_run")),
        sa.UniqueConstraint("owner", "idempotency", name=op.f("uq_run_owner_idempotency")),
        sa.UniqueConstraint("uuid", name=op.f("uq_run_uuid")),
    )
    op.create_index("ix_run_configuration_uid", "run", ["configuration_uid"])
    op.create_index("ix_run_due_at", "run", ["due_at"], postgresql_where=DUE, sqlite_where=DUE)
    op.create_index("ix_run_status_uid", "run", ["status", "uid"])
    op.create_table(
        "skill",
        sa.Column("uid", BIG, autoincrement=True, nullable=False),
        sa.Column("identifier", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("text_hash", sa.Text(), nullable=False),
        sa.Column("wrapped_key", sa.LargeBinary(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("data_class", sa.Text()),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("allowed_tools", sa.Text(), nullable=True, comment="JSON list; NULL = says nothing"),
        sa.Column("deleted_at", sa.Double()),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_skill")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "uq_skill_identifier", "skill", ["identifier"], unique=True, postgresql_where=LIVING, sqlite_where=LIVING
    )
    op.create_table(
        "snippet",
        sa.Column("uid", BIG, autoincrement=True, nullable=False),
        sa.Column("identifier", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("text", sa.LargeBinary(), nullable=False),
        sa.Column("text_hash", sa.Text(), nullable=False),
        sa.Column("wrapped_key", sa.LargeBinary(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("data_class", sa.Text()),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("deleted_at", sa.Double()),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_snippet")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "uq_snippet_identifier", "snippet", ["identifier"], unique=True, postgresql_where=LIVING, sqlite_where=LIVING
    )
    op.create_table(
        "tool_switch",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_tool_switch")),
    )
    op.create_table(
        "api_key",
        sa.Column("digest", sa.Text(), nullable=False, comment="SHA-256 of a key of 256 random bits"),
        sa.Column("actor_uid", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double()),
        sa.ForeignKeyConstraint(["actor_uid"], ["actor.uid"], name=op.f("fk_api_key_actor_uid")),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_api_key")),
    )
    op.create_table(
        "configuration_skill",
        sa.Column("configuration_uid", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("skill_uid", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["configuration_uid"], ["configuration.uid"], name=op.f("fk_configuration_skill_configuration_uid")
        ),
        sa.ForeignKeyConstraint(["skill_uid"], ["skill.uid"], name=op.f("fk_configuration_skill_skill_uid")),
        sa.PrimaryKeyConstraint("configuration_uid", "position", name=op.f("pk_configuration_skill")),
    )
    op.create_table(
        "configuration_snippet",
        sa.Column("configuration_uid", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("snippet_uid", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["configuration_uid"], ["configuration.uid"], name=op.f("fk_configuration_snippet_configuration_uid")
        ),
        sa.ForeignKeyConstraint(["snippet_uid"], ["snippet.uid"], name=op.f("fk_configuration_snippet_snippet_uid")),
        sa.PrimaryKeyConstraint("configuration_uid", "position", name=op.f("pk_configuration_snippet")),
    )
    op.create_table(
        "doc",
        sa.Column("run_uid", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("kind IN ('request', 'state', 'base')", name=op.f("ck_doc_kind")),
        sa.ForeignKeyConstraint(["run_uid"], ["run.uid"], name=op.f("fk_doc_run_uid")),
        sa.PrimaryKeyConstraint("run_uid", "kind", name=op.f("pk_doc")),
    )
    op.create_table(
        "exposure",
        sa.Column("run_uid", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("source_uid", sa.BigInteger(), nullable=False),
        sa.Column("data_class", sa.Text(), nullable=False, comment="empty = declared nothing"),
        sa.Column("provider_uid", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("identifier", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("first_at", sa.Double(), nullable=False),
        sa.Column("last_at", sa.Double(), nullable=False),
        sa.Column("sends", sa.Integer(), nullable=False),
        sa.CheckConstraint("state IN ('possible', 'failed', 'answered')", name=op.f("ck_exposure_state")),
        sa.ForeignKeyConstraint(["run_uid"], ["run.uid"], name=op.f("fk_exposure_run_uid")),
        sa.PrimaryKeyConstraint(
            "run_uid", "kind", "source_uid", "data_class", "provider_uid", "model", "zone", name=op.f("pk_exposure")
        ),
    )
    op.create_index("ix_exposure_kind_source_uid", "exposure", ["kind", "source_uid"])
    op.create_index("ix_exposure_provider_uid", "exposure", ["provider_uid"])
    op.create_table(
        "inbox",
        sa.Column("run_uid", sa.BigInteger(), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("decided_by", sa.Text(), nullable=False),
        sa.Column("via", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("consumed_seq", sa.BigInteger()),
        sa.CheckConstraint("kind IN ('decision', 'input', 'outcome')", name=op.f("ck_inbox_kind")),
        sa.ForeignKeyConstraint(["run_uid"], ["run.uid"], name=op.f("fk_inbox_run_uid")),
        sa.PrimaryKeyConstraint("run_uid", "question", name=op.f("pk_inbox")),
    )
    op.create_table(
        "journal",
        sa.Column("run_uid", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("segment", sa.Integer(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("policy_version", sa.BigInteger(), nullable=False),
        sa.Column("prev", sa.LargeBinary(), nullable=False),
        sa.Column("meta", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_uid"], ["run.uid"], name=op.f("fk_journal_run_uid")),
        sa.PrimaryKeyConstraint("run_uid", "seq", name=op.f("pk_journal")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run_source",
        sa.Column("run_uid", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("source_uid", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("seen", sa.Text()),
        sa.Column("text_hash", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_uid"], ["run.uid"], name=op.f("fk_run_source_run_uid")),
        sa.PrimaryKeyConstraint("run_uid", "kind", "source_uid", name=op.f("pk_run_source")),
    )
    op.create_index("ix_run_source_kind_source_uid", "run_source", ["kind", "source_uid"])
    version = sa.table("catalogue_version", sa.column("id", sa.Integer), sa.column("version", sa.BigInteger))
    op.bulk_insert(version, [{"id": 1, "version": 1}])
    policy = sa.table("policy", sa.column("name", sa.Text), sa.column("value", sa.Text))
    op.bulk_insert(policy, [{"name": "data_class_enforcement", "value": "enforce"}])
