"""Indexes for runs that continue another one, and for cancelled ones that are still held.

A pre migration: builds from 0001 on do not mind it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002_for_0001"
down_revision = "0001"
branch_labels = None
depends_on = None

HELD = sa.text("status = 'cancelled' AND token IS NOT NULL")
FOLLOWED = sa.text("lineage_run IS NOT NULL")


def upgrade() -> None:
    op.create_index("ix_run_lineage_run", "run", ["lineage_run"], postgresql_where=FOLLOWED, sqlite_where=FOLLOWED)
    op.create_index("ix_run_cancelled", "run", ["status", "due_at"], postgresql_where=HELD, sqlite_where=HELD)
