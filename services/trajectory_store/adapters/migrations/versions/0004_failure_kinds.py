"""Which failure of its policy a graded trajectory ended with, to filter by. Rows that were graded before have
none until they change: the kind is in the record of the grade.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column without writing a row; a store of the version before writes rows without it."""
    op.add_column("episodes", sa.Column("failure_kind", sa.String, nullable=False, server_default=""))
