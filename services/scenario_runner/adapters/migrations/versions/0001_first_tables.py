"""Tasksets, splits of tasks, runs, groups, episodes, groups of evaluations that runs train on, outbox."""

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
    _groups()
    _episodes()
    _source_groups()
    outbox_table(sa.MetaData()).create(op.get_bind())


def _text(name: str, size: int | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.String(size) if size else sa.Text(), nullable=False)


def _tenant(*, in_key: bool = False) -> sa.Column[str]:
    return sa.Column("tenant", sa.String(64), nullable=False, server_default="default", primary_key=in_key)


def _count(name: str, default: str = "0") -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default=default)


def _number(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Float, nullable=False, server_default="0")


def _time(name: str, *, nullable: bool = True) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _of_taskset() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["tenant", "taskset"], ["taskset.tenant", "taskset.storage_key"])


def _tasksets() -> None:
    op.create_table(
        "taskset",
        _tenant(in_key=True),
        sa.Column("storage_key", sa.String(200), primary_key=True),
        _text("name", 200),
        _count("revision", "1"),
        _text("digest", 64),
        _text("split", 16),
        _text("source"),
        _count("num_tasks"),
        _time("registered_at", nullable=False),
    )
    op.create_index("taskset_by_name", "taskset", ["tenant", "name", "revision"], unique=True)
    op.create_table(
        "task",
        _tenant(in_key=True),
        sa.Column("taskset", sa.String(200), primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        _text("slug", 200),
        _text("scenario", 200),
        _text("args_json"),
        _text("family", 200),
        _text("digest", 64),
        _of_taskset(),
    )
    op.create_table(
        "task_claim",
        _tenant(in_key=True),
        sa.Column("digest", sa.String(64), primary_key=True),
        _text("split", 16),
        _text("claimed_by"),
        _time("claimed_at", nullable=False),
    )


def _runs() -> None:
    op.create_table(
        "run",
        sa.Column("run_id", sa.String(64), primary_key=True),
        _tenant(),
        _text("request_id", 200),
        _text("model", 200),
        _text("purpose", 16),
        _text("split", 16),
        _text("state", 16),
        sa.Column("ending", sa.String(16), comment="the final state, once it is decided and not yet reached"),
        _text("spec"),
        _text("taskset", 200),
        _count("taskset_revision", "1"),
        _text("taskset_digest", 64),
        _count("num_tasks"),
        _text("trace_id", 32),
        _text("trace"),
        _text("failure"),
        _count("step"),
        _count("policy_version"),
        _count("next_position"),
        sa.Column("recent_ends", sa.String(64), nullable=False, server_default=""),
        _count("num_graded"),
        _count("num_successes"),
        _number("reward_sum"),
        _number("engine_s"),
        _number("environment_s"),
        _number("trainer_s"),
        _time("submitted_at", nullable=False),
        _time("ending_since"),
        _time("finished_at"),
        sa.UniqueConstraint("tenant", "request_id"),
        _of_taskset(),
    )
    op.create_index("run_by_state", "run", ["state", "model"])
    _run_trains_alone()


def _run_trains_alone() -> None:
    # Two trainers of one lineage would each continue the other's weights.
    trains = sa.text("purpose = 'train' AND state NOT IN ('completed', 'failed', 'cancelled')")
    op.create_index(
        "run_trains_alone",
        "run",
        ["tenant", "model"],
        unique=True,
        sqlite_where=trains,
        postgresql_where=trains,
    )


def _groups() -> None:
    op.create_table(
        "task_group",
        sa.Column("group_id", sa.String(80), primary_key=True),
        sa.Column("run_id", sa.String(64), sa.ForeignKey("run.run_id"), nullable=False),
        _text("taskset", 200),
        _count("position"),
        _count("task_position"),
        _count("expected_members"),
        _count("num_graded"),
        sa.Column("is_open", sa.Boolean, nullable=False),
        _text("outcome"),
        _count("at_step"),
        _time("settled_at"),
    )
    # Counts outcomes, and finds open groups, without reading rows.
    op.create_index("task_group_by_outcome", "task_group", ["run_id", "is_open", "outcome"])
    op.create_index("task_group_by_step", "task_group", ["run_id", "at_step"])


def _episodes() -> None:
    op.create_table(
        "episode",
        sa.Column("episode_id", sa.String(100), primary_key=True),
        sa.Column("run_id", sa.String(64), sa.ForeignKey("run.run_id"), nullable=False),
        sa.Column("group_id", sa.String(80), sa.ForeignKey("task_group.group_id"), nullable=False),
        sa.Column("member", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        _text("taskset", 200),
        _count("task_position"),
        _text("split", 16),
        _text("state", 16),
        _text("reason"),
        _text("detail"),
        _number("reward"),
        _number("engine_s"),
        _number("environment_s"),
        sa.Column("success", sa.Boolean, nullable=False),
        sa.Column("num_turns", sa.Integer, nullable=False, server_default="0"),
        _count("oldest_version"),
        _count("newest_version"),
        _count("num_dispatches"),
        _text("body_key"),
        _text("body_sha256", 64),
        _count("body_size"),
        sa.Column("stop_reason", sa.Integer, nullable=False, server_default="0"),
        _time("requested_at", nullable=False),
        _time("dispatched_at", nullable=False),
        _time("opened_at"),
        _time("graded_at"),
        _time("settled_at"),
    )
    op.create_index("episode_by_run", "episode", ["run_id", "state"])
    op.create_index("episode_by_group", "episode", ["group_id"])


def _source_groups() -> None:
    op.create_table(
        "source_group",
        sa.Column("group_id", sa.String(80), sa.ForeignKey("task_group.group_id"), primary_key=True),
        sa.Column("run_id", sa.String(64), sa.ForeignKey("run.run_id"), primary_key=True),
        sa.Column("source_run_id", sa.String(64), sa.ForeignKey("run.run_id"), nullable=False),
        _text("state", 16),
        _text("reason"),
        _count("step"),
        _time("ended_at", nullable=False),
        _time("offered_at"),
        _time("settled_at"),
    )
    # A group is offered to one run at a time, and trains in one.
    taken = sa.text("state IN ('offered', 'trained')")
    op.create_index(
        "source_group_taken_once",
        "source_group",
        ["group_id"],
        unique=True,
        sqlite_where=taken,
        postgresql_where=taken,
    )
    op.create_index("source_group_by_state", "source_group", ["run_id", "state", "ended_at", "group_id"])
    op.create_index("source_group_by_step", "source_group", ["run_id", "state", "step"])
    op.create_index("source_group_by_source", "source_group", ["run_id", "source_run_id", "state", "reason"])
