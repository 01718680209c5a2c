"""What alembic runs: the migrations, on the connection and in the transaction that it was given."""

from __future__ import annotations

from alembic import context

from worker.adapters.sql import (
    catalogue_tables,  # noqa: F401 - the comparison needs every table to be known
    tables,  # noqa: F401
)
from worker.adapters.sql.schema import metadata

__all__: list[str] = []

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite cannot alter a column
)
with context.begin_transaction():
    context.run_migrations()
