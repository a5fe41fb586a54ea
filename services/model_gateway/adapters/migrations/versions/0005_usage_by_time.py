"""Usage of all keys since a moment."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this revision."""
    op.create_index("usage_by_time", "usage", ["started_at"])
