"""After which failed episode an episode was guided: it is shown, and monitors leave it out."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column without writing a row; a store of the version before writes rows without it."""
    op.add_column("episodes", sa.Column("guided_after", sa.String, nullable=False, server_default=""))
