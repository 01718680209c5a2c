"""How often a run was claimed since it came further, and how many sends of an exposure failed.

A pre migration: builds from 0001 on do not mind it, and count nothing.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003_for_0001"
down_revision = "0002_for_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run", sa.Column("in_vain", sa.Integer, nullable=False, server_default="0"))
    op.add_column("exposure", sa.Column("failures", sa.Integer, nullable=False, server_default="0"))
    op.execute("UPDATE exposure SET failures = sends WHERE state = 'failed'")
