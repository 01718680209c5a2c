"""How often a run was claimed since something was stored of it.

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
    op.add_column("run", sa.Column("tries", sa.Integer, nullable=False, server_default="0"))
