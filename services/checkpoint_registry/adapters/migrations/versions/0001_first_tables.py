"""Models, checkpoints, published versions, heads, leases, the gate's state machine, evidence, outbox."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from sql_store import columns, outbox_table

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _required(names: str, kind: Any) -> list[sa.Column[Any]]:
    return columns(names, kind, nullable=False)


def _texts(names: str, size: int) -> list[sa.Column[Any]]:
    return _required(names, sa.String(size))


def _times(names: str) -> list[sa.Column[Any]]:
    return _required(names, sa.DateTime(timezone=True))


def _key(name: str, size: int) -> sa.Column[str]:
    return sa.Column(name, sa.String(size), primary_key=True)


def _tenant(*, primary_key: bool = False) -> sa.Column[str]:
    kind = sa.String(64)
    return sa.Column("tenant", kind, primary_key=primary_key, nullable=False, server_default="default")


def _of_model() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["tenant", "model"], ["model.tenant", "model.model"])


def _of_checkpoint() -> sa.ForeignKeyConstraint:
    referred = ["checkpoint.tenant", "checkpoint.checkpoint_id"]
    return sa.ForeignKeyConstraint(["tenant", "checkpoint_id"], referred)


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
        _key("model", 64),
        *_texts("forked_from_checkpoint_id head_checkpoint_id", 128),
        *_required("head_version head_revision", sa.BigInteger),
        *_times("created_at"),
    )
    op.create_table(
        "checkpoint",
        _tenant(primary_key=True),
        _key("checkpoint_id", 128),
        *_texts("model digest run_id", 64),
        *_texts("parent_checkpoint_id", 128),
        *_texts("state", 16),
        *_required("version step", sa.BigInteger),
        *_required("manifest metrics sources", sa.JSON),
        *columns("training_state", sa.JSON),
        *_required("reason gate_json", sa.Text),
        *_times("created_at"),
        sa.UniqueConstraint("tenant", "model", "version", name="checkpoint_version_once"),
        _of_model(),
    )


def _versions() -> None:
    op.create_table(
        "head_move",
        _tenant(primary_key=True),
        _key("model", 64),
        sa.Column("revision", sa.BigInteger, primary_key=True),
        *_texts("from_checkpoint_id to_checkpoint_id actor", 128),
        *_required("reason", sa.Text),
        *_times("moved_at"),
        _of_model(),
    )
    op.create_table(
        "published_version",
        _tenant(primary_key=True),
        _key("model", 64),
        sa.Column("version", sa.BigInteger, primary_key=True),
        *_texts("digest run_id", 64),
        *_required("manifest", sa.JSON),
        *_required("step", sa.BigInteger),
        *_times("published_at"),
        # Set when retention removes the files; the row stays, so that a late fact cannot bring it back.
        *columns("removed_at", sa.DateTime(timezone=True)),
        _of_model(),
    )


def _engines() -> None:
    op.create_table(
        "engine_lease",
        _tenant(),
        _key("engine_id", 128),
        *_texts("model", 64),
        *_required("channel", sa.Integer),
        *_required("body", sa.LargeBinary),
        *_times("expires_at"),
        _of_model(),
    )
    op.create_index("engine_lease_by_model", "engine_lease", ["model", "expires_at"])


def _gate() -> None:
    op.create_table(
        "gate_job",
        _tenant(primary_key=True),
        _key("checkpoint_id", 128),
        *_texts("model run_id traceparent taskset_digest", 64),
        *_texts("phase", 16),
        *_required("version", sa.BigInteger),
        *_required("taskset_revision", sa.Integer),
        *columns("gate profile", sa.JSON),
        *_times("created_at"),
        # The model's name while the job runs, else null: unique, so that one job of a model runs at a time.
        *columns("active_for_model", sa.String(64)),
        sa.UniqueConstraint("tenant", "active_for_model", name="gate_job_active_once"),
        _of_checkpoint(),
    )
    op.create_index("gate_job_by_phase", "gate_job", ["phase", "model", "version"])
    op.create_index("gate_job_by_model", "gate_job", ["model", "version"])


def _evidence() -> None:
    op.create_table(
        "evaluation",
        _tenant(),
        _key("run_id", 64),
        *_texts("checkpoint_id profile_key", 128),
        *_texts("taskset", 256),
        *_texts("taskset_digest", 64),
        *_required("num_tasks", sa.Integer),
        *_required("tallies", sa.JSON),
        *_times("finished_at"),
        _of_checkpoint(),
    )
    op.create_index("evaluation_by_checkpoint", "evaluation", ["checkpoint_id", "taskset_digest"])
    op.create_table(
        "evaluation_request",
        _tenant(primary_key=True),
        _key("request_id", 384),
        *_texts("checkpoint_id profile_key", 128),
        *_texts("taskset_digest run_id", 64),
        *_texts("state", 16),
        *_required("attempt", sa.Integer),
        *_required("detail", sa.Text),
        *_times("updated_at"),
        _of_checkpoint(),
    )
    op.create_index("evaluation_request_by_run", "evaluation_request", ["run_id"])
    indexed = ["checkpoint_id", "taskset_digest", "attempt"]
    op.create_index("evaluation_request_by_checkpoint", "evaluation_request", indexed)
