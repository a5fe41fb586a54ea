"""The training runs that a run of a watch was ordered beside: to a new one it makes way."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Runs of before, and of a registry of the version before, count as ordered while nothing trained."""
    op.add_column("watch_run", sa.Column("beside", sa.Text, nullable=False, server_default=""))
