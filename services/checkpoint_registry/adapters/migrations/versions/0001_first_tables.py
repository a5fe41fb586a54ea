"""Models, checkpoints, heads, leases, the gate's state machine, evidence, outbox."""

import sqlalchemy as sa
from alembic import op

from sql_store import outbox_table

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _time(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False)


def _text(name: str, size: int | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.String(size) if size else sa.Text(), nullable=False)


def upgrade() -> None:
    """To this revision."""
    _models()
    _engines()
    _gate()
    _evidence()
    outbox_table(sa.MetaData()).create(op.get_bind())


def downgrade() -> None:
    """There is nothing before this revision."""
    names = "outbox evaluation_request evaluation gate_job engine_lease head_move checkpoint model"
    for name in names.split():
        op.drop_table(name)


def _models() -> None:
    op.create_table(
        "model",
        sa.Column("model", sa.String(64), primary_key=True),
        _text("forked_from_checkpoint_id", 128),
        _text("head_checkpoint_id", 128),
        sa.Column("head_version", sa.BigInteger, nullable=False),
        sa.Column("head_revision", sa.BigInteger, nullable=False),
        _time("created_at"),
    )
    op.create_table(
        "checkpoint",
        sa.Column("checkpoint_id", sa.String(128), primary_key=True),
        sa.Column("model", sa.String(64), sa.ForeignKey("model.model"), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        _text("parent_checkpoint_id", 128),
        _text("digest", 64),
        sa.Column("manifest", sa.JSON, nullable=False),
        sa.Column("training_state", sa.JSON, nullable=True),
        _text("state", 16),
        _text("run_id", 64),
        sa.Column("step", sa.BigInteger, nullable=False),
        _text("reason"),
        _text("gate_json"),
        sa.Column("metrics", sa.JSON, nullable=False),
        _time("created_at"),
        sa.UniqueConstraint("model", "version", name="checkpoint_version_once"),
    )
    op.create_table(
        "head_move",
        sa.Column("model", sa.String(64), sa.ForeignKey("model.model"), primary_key=True),
        sa.Column("revision", sa.BigInteger, primary_key=True),
        _text("from_checkpoint_id", 128),
        _text("to_checkpoint_id", 128),
        _text("actor", 128),
        _text("reason"),
        _time("moved_at"),
    )


def _engines() -> None:
    op.create_table(
        "engine_lease",
        sa.Column("engine_id", sa.String(128), primary_key=True),
        sa.Column("model", sa.String(64), sa.ForeignKey("model.model"), nullable=False),
        sa.Column("channel", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        _time("expires_at"),
    )
    op.create_index("engine_lease_by_model", "engine_lease", ["model", "expires_at"])


def _gate() -> None:
    op.create_table(
        "gate_job",
        sa.Column(
            "checkpoint_id", sa.String(128), sa.ForeignKey("checkpoint.checkpoint_id"), primary_key=True
        ),
        _text("model", 64),
        sa.Column("version", sa.BigInteger, nullable=False),
        _text("run_id", 64),
        _text("phase", 16),
        _time("created_at"),
        _text("traceparent", 64),
        sa.Column("gate", sa.JSON, nullable=True),
        sa.Column("profile", sa.JSON, nullable=True),
        _text("taskset_digest", 64),
        sa.Column("slot", sa.String(64), nullable=True, unique=True),
    )
    op.create_index("gate_job_by_phase", "gate_job", ["phase", "model", "version"])


def _evidence() -> None:
    op.create_table(
        "evaluation",
        sa.Column("run_id", sa.String(64), primary_key=True),
        sa.Column("checkpoint_id", sa.String(128), sa.ForeignKey("checkpoint.checkpoint_id"), nullable=False),
        _text("taskset", 256),
        _text("taskset_digest", 64),
        _text("profile_key", 128),
        sa.Column("num_tasks", sa.Integer, nullable=False),
        sa.Column("tallies", sa.JSON, nullable=False),
        _time("finished_at"),
    )
    op.create_index("evaluation_by_checkpoint", "evaluation", ["checkpoint_id", "taskset_digest"])
    op.create_table(
        "evaluation_request",
        sa.Column("request_id", sa.String(384), primary_key=True),
        sa.Column("checkpoint_id", sa.String(128), sa.ForeignKey("checkpoint.checkpoint_id"), nullable=False),
        _text("taskset_digest", 64),
        _text("profile_key", 128),
        sa.Column("attempt", sa.Integer, nullable=False),
        _text("run_id", 64),
        _text("state", 16),
        _text("detail"),
        _time("updated_at"),
    )
    op.create_index("evaluation_request_by_run", "evaluation_request", ["run_id"])
    op.create_index(
        "evaluation_request_by_checkpoint",
        "evaluation_request",
        ["checkpoint_id", "taskset_digest", "attempt"],
    )
