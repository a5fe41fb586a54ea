"""Who changed what: rows that are only added."""

from sql_store.audit import create_audit_table

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Begins empty: moves of head from before are in `head_move`."""
    create_audit_table()
