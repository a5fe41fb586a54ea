"""Indexes for what is asked of one model, one run or one taskset: reading all rows of a tenant took longer
with each checkpoint.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Each begins with the tenant: SQLite prefers an index of which a query knows the first column."""
    for name, table, indexed in (
        ("checkpoint_by_run", "checkpoint", ["tenant", "run_id"]),
        ("gate_job_of_model", "gate_job", ["tenant", "model", "version"]),
        ("gate_job_by_taskset", "gate_job", ["tenant", "taskset_digest"]),
        ("gate_job_of_phase", "gate_job", ["tenant", "phase", "model", "version"]),
        ("evaluation_request_of_run", "evaluation_request", ["tenant", "run_id"]),
    ):
        op.create_index(name, table, indexed)
    where = sa.text("run_id LIKE 'interactive-%'")
    indexed = ["tenant", "run_id"]
    op.create_index(
        "checkpoint_interactive", "checkpoint", indexed, sqlite_where=where, postgresql_where=where
    )
