"""Of which kinds the guidance of an episode was: a plan, feedback, a hint."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A column that is added without writing a row; a planner of the version before writes rows without
    it."""
    op.add_column("episode", sa.Column("guided_by", sa.String, nullable=False, server_default=""))
