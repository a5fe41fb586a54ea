"""Tables of the trajectory store, as Alembic migrations."""
