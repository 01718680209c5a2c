"""The SQL store: SQLAlchemy Core on SQLite and PostgreSQL, one schema."""
