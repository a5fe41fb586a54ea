"""Alembic migrations of the registry's tables; applied at start."""
