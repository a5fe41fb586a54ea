"""What the runs of a watch took of the engines: beside training they have a limit."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Runs of before took nothing, as does what a registry of the version before reads."""
    op.add_column("watch_run", sa.Column("engine_s", sa.Float, nullable=False, server_default="0"))
