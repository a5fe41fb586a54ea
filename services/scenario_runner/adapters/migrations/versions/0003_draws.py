"""What training runs draw from evaluations, and where the bodies of evaluated episodes are."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_BODY = ("body_key", "body_sha256", "body_size", "stop_reason")


def upgrade() -> None:
    """To this revision. Episodes that were graded before it have no body here, so they do not train."""
    for name, kind in (("body_key", sa.Text()), ("body_sha256", sa.String(64))):
        op.add_column("episode", sa.Column(name, kind, nullable=False, server_default=""))
    for number, size in (("body_size", sa.BigInteger()), ("stop_reason", sa.Integer())):
        op.add_column("episode", sa.Column(number, size, nullable=False, server_default="0"))
    op.create_table(
        "draw",
        sa.Column("group_id", sa.String(80), sa.ForeignKey("task_group.group_id"), primary_key=True),
        sa.Column("run_id", sa.String(64), sa.ForeignKey("run.run_id"), primary_key=True),
        sa.Column("source_run_id", sa.String(64), sa.ForeignKey("run.run_id"), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False, server_default=""),
        sa.Column("step", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("offered_at", sa.DateTime(timezone=True)),
        sa.Column("settled_at", sa.DateTime(timezone=True)),
    )
    taken = sa.text("state IN ('offered', 'trained')")
    op.create_index(
        "draw_taken_once", "draw", ["group_id"], unique=True, sqlite_where=taken, postgresql_where=taken
    )
    op.create_index("draw_by_state", "draw", ["run_id", "state", "ended_at", "group_id"])
    op.create_index("draw_by_step", "draw", ["run_id", "state", "step"])
    op.create_index("draw_by_source", "draw", ["run_id", "source_run_id", "state", "reason"])


def downgrade() -> None:
    """To the revision before."""
    op.drop_table("draw")
    for name in _BODY:
        op.drop_column("episode", name)
