"""Shadow traffic: the share of the requests that the checkpoint of a canary release answers unseen."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A registry of the version before begins releases without any."""
    column = sa.Column("shadow_share", sa.Float, nullable=False, server_default="0")
    op.add_column("canary_release", column)
