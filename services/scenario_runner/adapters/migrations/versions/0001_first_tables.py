"""Tasksets, runs, groups, episodes, outbox."""

import sqlalchemy as sa
from alembic import op

from sql_store import outbox_table

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this revision."""
    _tasksets()
    _runs()
    _plan()
    outbox_table(sa.MetaData()).create(op.get_bind())


def downgrade() -> None:
    """There is nothing before this revision."""
    for name in ("outbox", "episode", "task_group", "run", "task", "taskset"):
        op.drop_table(name)


def _text(name: str, size: int | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.String(size) if size else sa.Text(), nullable=False)


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def _time(name: str, *, nullable: bool = True) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _tasksets() -> None:
    op.create_table(
        "taskset",
        sa.Column("name", sa.String(200), primary_key=True),
        _text("digest", 64),
        _text("split", 16),
        _text("source"),
        _count("num_tasks"),
        _time("registered_at", nullable=False),
    )
    op.create_table(
        "task",
        sa.Column("taskset", sa.String(200), sa.ForeignKey("taskset.name"), primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        _text("slug", 200),
        _text("scenario", 200),
        _text("args_json"),
        _text("family", 200),
        _text("digest", 64),
    )


def _runs() -> None:
    op.create_table(
        "run",
        sa.Column("run_id", sa.String(64), primary_key=True),
        sa.Column("request_id", sa.String(200), nullable=False, unique=True),
        _text("model", 200),
        _text("purpose", 16),
        _text("split", 16),
        _text("state", 16),
        sa.Column("ending", sa.String(16), comment="the final state, once it is decided and not yet reached"),
        _text("spec"),
        sa.Column("taskset", sa.String(200), sa.ForeignKey("taskset.name"), nullable=False),
        _text("taskset_digest", 64),
        _count("num_tasks"),
        _text("trace_id", 32),
        _text("trace"),
        _text("failure"),
        _count("step"),
        _count("policy_version"),
        _count("next_position"),
        _count("num_graded"),
        _count("num_successes"),
        sa.Column("reward_sum", sa.Float, nullable=False, server_default="0"),
        _time("submitted_at", nullable=False),
        _time("ending_since"),
        _time("finished_at"),
    )
    op.create_index("run_by_state", "run", ["state", "model"])


def _plan() -> None:
    op.create_table(
        "task_group",
        sa.Column("group_id", sa.String(80), primary_key=True),
        sa.Column("run_id", sa.String(64), sa.ForeignKey("run.run_id"), nullable=False),
        _count("position"),
        _count("task_position"),
        _count("expected_members"),
        _count("num_graded"),
        sa.Column("is_open", sa.Boolean, nullable=False),
        _text("outcome"),
        _time("settled_at"),
    )
    op.create_index("task_group_by_run", "task_group", ["run_id", "is_open"])
    op.create_table(
        "episode",
        sa.Column("episode_id", sa.String(100), primary_key=True),
        sa.Column("run_id", sa.String(64), sa.ForeignKey("run.run_id"), nullable=False),
        sa.Column("group_id", sa.String(80), sa.ForeignKey("task_group.group_id"), nullable=False),
        sa.Column("member", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        _text("taskset", 200),
        _count("task_position"),
        _text("state", 16),
        _text("reason"),
        _text("detail"),
        sa.Column("reward", sa.Float, nullable=False, server_default="0"),
        sa.Column("success", sa.Boolean, nullable=False),
        sa.Column("num_turns", sa.Integer, nullable=False, server_default="0"),
        _count("oldest_version"),
        _count("newest_version"),
        _count("num_dispatches"),
        _time("requested_at", nullable=False),
        _time("dispatched_at", nullable=False),
        _time("opened_at"),
        _time("graded_at"),
        _time("settled_at"),
    )
    op.create_index("episode_by_run", "episode", ["run_id", "state"])
    op.create_index("episode_by_group", "episode", ["group_id"])
