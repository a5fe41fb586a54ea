"""The code that judged a run of a watch: after it changed, pairs count for a bet of their own, too."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of runs of before, and of a registry of the version before, it is not known."""
    op.add_column("watch_run", sa.Column("source_digest", sa.Text, nullable=False, server_default=""))
