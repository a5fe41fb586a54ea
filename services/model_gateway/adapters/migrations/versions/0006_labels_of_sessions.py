"""What the client of a recorded session said about it when it opened it."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this revision. A gateway of the version before opens sessions without labels."""
    op.add_column("recorded_session", sa.Column("labels", sa.Text, nullable=False, server_default=""))
