"""Alembic's folder: the environment and the revisions. `worker.adapters.sql.migrate` runs it."""
