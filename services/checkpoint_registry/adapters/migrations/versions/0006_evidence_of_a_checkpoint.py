"""The evidence of one checkpoint by index: SQLite took the one by taskset, and read all that it has."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Its four first columns are what the gate gives, one more than the index by taskset has of them. The
    tenant is not the first: SQLite would take such an index for runs given by their ids, and read them all.
    """
    indexed = ["checkpoint_id", "taskset_digest", "profile_key", "tenant", "finished_at"]
    op.create_index("evaluation_of_checkpoint", "evaluation", indexed)
