"""Which runs somebody asked for, and which gate, watch and tracking ordered."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A column that is added without writing a row: a run from before counts as asked for, and so does one
    that a planner of the version before takes."""
    op.add_column("run", sa.Column("is_by_platform", sa.Boolean, nullable=False, server_default=sa.false()))
