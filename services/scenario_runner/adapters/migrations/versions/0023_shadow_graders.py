"""What the shadow graders of an episode said."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column without writing a row; a planner of the version before writes rows without it."""
    op.add_column("episode", sa.Column("shadow", sa.Boolean, nullable=True))
