"""Who changed what: rows that are only added."""

from sql_store.audit import create_audit_table

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Begins empty."""
    create_audit_table()
