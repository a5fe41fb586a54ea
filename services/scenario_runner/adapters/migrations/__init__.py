"""Alembic migrations of the planner's tables; applied at start."""
