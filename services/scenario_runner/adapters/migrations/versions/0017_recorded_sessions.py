"""Recorded sessions that training runs take. A group that a run looks at may be of sessions, which no run of
the planner planned: `source_group` names such groups without rows of them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A table; and two foreign keys less, which on SQLite means that the table is written anew."""
    op.create_table(
        "offered_session",
        sa.Column("run_id", sa.String(64), sa.ForeignKey("run.run_id"), primary_key=True),
        sa.Column("episode_id", sa.String(100), primary_key=True),
        sa.Column("group_id", sa.String(80), nullable=False),
        sa.Column("task_digest", sa.String(64), nullable=False),
        sa.Column("member", sa.Integer, nullable=False),
        sa.Column("reward", sa.Float, nullable=False),
        sa.Column("success", sa.Boolean, nullable=False),
        sa.Column("oldest_version", sa.BigInteger, nullable=False),
        sa.Column("newest_version", sa.BigInteger, nullable=False),
        sa.Column("body_key", sa.Text, nullable=False),
        sa.Column("body_sha256", sa.String(64), nullable=False),
        sa.Column("body_size", sa.BigInteger, nullable=False),
        sa.Column("stop_reason", sa.Integer, nullable=False),
        sa.Column("graded_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("offered_session_of_group", "offered_session", ["run_id", "group_id", "member"])
    op.create_index("offered_session_by_episode", "offered_session", ["episode_id"])
    if op.get_context().dialect.name == "postgresql":
        for column in ("group_id", "source_run_id"):
            op.drop_constraint(f"source_group_{column}_fkey", "source_group", type_="foreignkey")
    else:
        _write_anew()


def _write_anew() -> None:
    op.execute("ALTER TABLE source_group RENAME TO source_group_before")
    op.create_table(
        "source_group",
        sa.Column("group_id", sa.String(80), primary_key=True),
        sa.Column("run_id", sa.String(64), sa.ForeignKey("run.run_id"), primary_key=True),
        sa.Column("source_run_id", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("offered_at", sa.DateTime(timezone=True)),
        sa.Column("settled_at", sa.DateTime(timezone=True)),
    )
    columns = "group_id, run_id, source_run_id, state, reason, step, ended_at, offered_at, settled_at"
    op.execute(f"INSERT INTO source_group ({columns}) SELECT {columns} FROM source_group_before")  # noqa: S608
    op.drop_table("source_group_before")  # with its indexes
    taken = sa.text("state IN ('offered', 'trained')")
    op.create_index("source_group_taken_once", "source_group", ["group_id"], unique=True, sqlite_where=taken)
    op.create_index("source_group_by_state", "source_group", ["run_id", "state", "ended_at", "group_id"])
    op.create_index("source_group_by_step", "source_group", ["run_id", "state", "step"])
    op.create_index("source_group_by_source", "source_group", ["run_id", "source_run_id", "state", "reason"])
    op.create_index("source_group_of_source", "source_group", ["source_run_id", "run_id"])
