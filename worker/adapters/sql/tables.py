"""Tables of runs. Constraints repeat the invariants of the machine.

Columns named payload hold sealed bytes; `worker.adapters.sql.sealed` lists every sealed column, and nothing else may
hold content. Times are seconds since the epoch by the database's clock.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from codec.vocabulary import ExposureState, Origin, RunStatus, TerminationReason
from worker.adapters.sql.schema import BIG, metadata, words

__all__ = [
    "audit",
    "doc",
    "exposure",
    "inbox",
    "journal",
    "key_ring",
    "process",
    "run",
    "run_source",
]

run: Final = sa.Table(
    "run",
    metadata,
    sa.Column("uid", BIG, primary_key=True, autoincrement=True),
    sa.Column("uuid", sa.Text, nullable=False, unique=True),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("head", sa.LargeBinary, nullable=False),
    sa.Column("token", sa.Text),
    sa.Column("holder", sa.Text),
    sa.Column("segment", sa.Integer, nullable=False, server_default="0"),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("in_vain", sa.Integer, nullable=False, server_default="0"),
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
    sa.CheckConstraint(words("status", RunStatus), name="status"),
    sa.CheckConstraint(words("origin", Origin), name="origin"),
    sa.CheckConstraint(f"reason IS NULL OR {words('reason', TerminationReason)}", name="reason"),
    # Who runs holds a token and a lease; a cancelled run keeps the token until its closing entry.
    sa.CheckConstraint(
        "(status = 'running' AND token IS NOT NULL AND due_at IS NOT NULL)"
        " OR status = 'cancelled' OR (status <> 'running' AND token IS NULL)",
        name="lease",
    ),
    sa.CheckConstraint(
        "status NOT IN ('waiting_for_approval', 'waiting_for_input') OR question IS NOT NULL", name="question"
    ),
    sa.CheckConstraint("(status IN ('completed', 'failed', 'cancelled')) = (finished_at IS NOT NULL)", name="finished"),
)
_due = run.c.due_at.is_not(None)
sa.Index("ix_run_due_at", run.c.due_at, postgresql_where=_due, sqlite_where=_due)
sa.Index("ix_run_status_uid", run.c.status, run.c.uid)
sa.Index("ix_run_configuration_uid", run.c.configuration_uid)
# Those that somebody must close when their lease has ended: almost none, among however many are due. With the status,
# since SQLite would else prefer the index that begins with it.
_held = sa.and_(run.c.status == sa.literal_column("'cancelled'"), run.c.token.is_not(None))
sa.Index("ix_run_cancelled", run.c.status, run.c.due_at, postgresql_where=_held, sqlite_where=_held)
_followed = run.c.lineage_run.is_not(None)
sa.Index("ix_run_lineage_run", run.c.lineage_run, postgresql_where=_followed, sqlite_where=_followed)

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
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
    sa.CheckConstraint(words("state", ExposureState), name="state"),
)
sa.Index("ix_exposure_kind_source_uid", exposure.c.kind, exposure.c.source_uid)
sa.Index("ix_exposure_provider_uid", exposure.c.provider_uid)

audit: Final = sa.Table(
    "audit",
    metadata,
    sa.Column("uid", BIG, primary_key=True, autoincrement=True),
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
