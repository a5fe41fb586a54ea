"""Models, checkpoints, published versions, heads, leases, the gate's state machine, evidence, outbox."""

import sqlalchemy as sa
from alembic import op

from sql_store import outbox_table

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _time(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _text(
    name: str, size: int | None = None, *, primary_key: bool = False, nullable: bool = False
) -> sa.Column[str]:
    kind = sa.String(size) if size else sa.Text()
    return sa.Column(name, kind, primary_key=primary_key, nullable=nullable)


def _number(name: str, *, primary_key: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, primary_key=primary_key, nullable=False)


def _small(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False)


def _json(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.JSON, nullable=nullable)


def _tenant(*, primary_key: bool = False) -> sa.Column[str]:
    kind = sa.String(64)
    return sa.Column("tenant", kind, primary_key=primary_key, nullable=False, server_default="default")


def _of_model() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["tenant", "model"], ["model.tenant", "model.model"])


def _of_checkpoint() -> sa.ForeignKeyConstraint:
    columns = ["checkpoint.tenant", "checkpoint.checkpoint_id"]
    return sa.ForeignKeyConstraint(["tenant", "checkpoint_id"], columns)


def upgrade() -> None:
    """To this revision."""
    _models()
    _versions()
    _engines()
    _gate()
    _evidence()
    outbox_table(sa.MetaData()).create(op.get_bind())


def _models() -> None:
    op.create_table(
        "model",
        _tenant(primary_key=True),
        _text("model", 64, primary_key=True),
        _text("forked_from_checkpoint_id", 128),
        _text("head_checkpoint_id", 128),
        _number("head_version"),
        _number("head_revision"),
        _time("created_at"),
    )
    op.create_table(
        "checkpoint",
        _tenant(primary_key=True),
        _text("checkpoint_id", 128, primary_key=True),
        _text("model", 64),
        _number("version"),
        _text("parent_checkpoint_id", 128),
        _text("digest", 64),
        _json("manifest"),
        _json("training_state", nullable=True),
        _text("state", 16),
        _text("run_id", 64),
        _number("step"),
        _text("reason"),
        _text("gate_json"),
        _json("metrics"),
        _json("sources"),
        _time("created_at"),
        sa.UniqueConstraint("tenant", "model", "version", name="checkpoint_version_once"),
        _of_model(),
    )


def _versions() -> None:
    op.create_table(
        "head_move",
        _tenant(primary_key=True),
        _text("model", 64, primary_key=True),
        _number("revision", primary_key=True),
        _text("from_checkpoint_id", 128),
        _text("to_checkpoint_id", 128),
        _text("actor", 128),
        _text("reason"),
        _time("moved_at"),
        _of_model(),
    )
    op.create_table(
        "published_version",
        _tenant(primary_key=True),
        _text("model", 64, primary_key=True),
        _number("version", primary_key=True),
        _text("digest", 64),
        _json("manifest"),
        _text("run_id", 64),
        _number("step"),
        _time("published_at"),
        _time("removed_at", nullable=True),
        _of_model(),
    )


def _engines() -> None:
    op.create_table(
        "engine_lease",
        _tenant(),
        _text("engine_id", 128, primary_key=True),
        _text("model", 64),
        _small("channel"),
        sa.Column("body", sa.LargeBinary, nullable=False),
        _time("expires_at"),
        _of_model(),
    )
    op.create_index("engine_lease_by_model", "engine_lease", ["model", "expires_at"])


def _gate() -> None:
    op.create_table(
        "gate_job",
        _tenant(primary_key=True),
        _text("checkpoint_id", 128, primary_key=True),
        _text("model", 64),
        _number("version"),
        _text("run_id", 64),
        _text("phase", 16),
        _time("created_at"),
        _text("traceparent", 64),
        _json("gate", nullable=True),
        _json("profile", nullable=True),
        _text("taskset_digest", 64),
        _small("taskset_revision"),
        _text("active_for_model", 64, nullable=True),
        sa.UniqueConstraint("tenant", "active_for_model", name="gate_job_active_once"),
        _of_checkpoint(),
    )
    op.create_index("gate_job_by_phase", "gate_job", ["phase", "model", "version"])


def _evidence() -> None:
    op.create_table(
        "evaluation",
        _tenant(),
        _text("run_id", 64, primary_key=True),
        _text("checkpoint_id", 128),
        _text("taskset", 256),
        _text("taskset_digest", 64),
        _text("profile_key", 128),
        _small("num_tasks"),
        _json("tallies"),
        _time("finished_at"),
        _of_checkpoint(),
    )
    op.create_index("evaluation_by_checkpoint", "evaluation", ["checkpoint_id", "taskset_digest"])
    op.create_table(
        "evaluation_request",
        _tenant(primary_key=True),
        _text("request_id", 384, primary_key=True),
        _text("checkpoint_id", 128),
        _text("taskset_digest", 64),
        _text("profile_key", 128),
        _small("attempt"),
        _text("run_id", 64),
        _text("state", 16),
        _text("detail"),
        _time("updated_at"),
        _of_checkpoint(),
    )
    op.create_index("evaluation_request_by_run", "evaluation_request", ["run_id"])
    columns = ["checkpoint_id", "taskset_digest", "attempt"]
    op.create_index("evaluation_request_by_checkpoint", "evaluation_request", columns)
