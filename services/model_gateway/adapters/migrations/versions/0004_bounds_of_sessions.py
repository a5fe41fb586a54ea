"""How much of a recorded session is stored, and how many of its calls are beyond that."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this revision. A gateway of the version before counts nothing."""
    for name in ("num_calls", "num_bytes", "unrecorded_calls"):
        column = sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0"))
        op.add_column("recorded_session", column)
