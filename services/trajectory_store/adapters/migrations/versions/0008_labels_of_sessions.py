"""What the client of a recorded session said about it when it opened it."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column without writing a row; a store of the version before writes rows without it."""
    op.add_column("episodes", sa.Column("labels", sa.String, nullable=False, server_default=""))
