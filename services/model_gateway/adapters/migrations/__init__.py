"""Alembic migrations of the gateway's tables; applied at start."""
