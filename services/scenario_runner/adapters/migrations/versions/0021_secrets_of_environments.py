"""Which environments may name a secret."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Each may name those that are set."""
    column = sa.Column("environments", sa.JSON, nullable=False, server_default="[]")
    op.add_column("server_secret", column)
