"""The marker of the training state that was saved with a version: another one in its place is seen."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Versions from before have none, and a registry of the version before records none."""
    op.add_column("published_version", sa.Column("training_state", sa.JSON))
