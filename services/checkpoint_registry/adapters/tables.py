"""The registry's tables. Times are aware UTC; the outbox table is sql_store's."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from identities.tenants import DEFAULT_TENANT
from sql_store import UtcDateTime

metadata = MetaData()


def _tenant(*, primary_key: bool = False) -> Column[str]:
    """Whose row it is: the default tenant, until callers have keys."""
    return Column(
        "tenant", String(64), primary_key=primary_key, nullable=False, server_default=DEFAULT_TENANT
    )


def _of_model() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["tenant", "model"], ["model.tenant", "model.model"])


def _of_checkpoint() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["tenant", "checkpoint_id"], ["checkpoint.tenant", "checkpoint.checkpoint_id"]
    )


model = Table(
    "model",
    metadata,
    _tenant(primary_key=True),
    Column("model", String(64), primary_key=True),
    Column("forked_from_checkpoint_id", String(128), nullable=False),
    Column("head_checkpoint_id", String(128), nullable=False),
    Column("head_version", BigInteger, nullable=False),
    Column("head_revision", BigInteger, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)

checkpoint = Table(
    "checkpoint",
    metadata,
    _tenant(primary_key=True),
    Column("checkpoint_id", String(128), primary_key=True),
    Column("model", String(64), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("parent_checkpoint_id", String(128), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("manifest", JSON, nullable=False),
    Column("training_state", JSON, nullable=True),
    Column("state", String(16), nullable=False),
    Column("run_id", String(64), nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("gate_json", Text, nullable=False),
    Column("metrics", JSON, nullable=False),
    Column("sources", JSON, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("tenant", "model", "version", name="checkpoint_version_once"),
    _of_model(),
)

head_move = Table(
    "head_move",
    metadata,
    _tenant(primary_key=True),
    Column("model", String(64), primary_key=True),
    Column("revision", BigInteger, primary_key=True),
    Column("from_checkpoint_id", String(128), nullable=False),
    Column("to_checkpoint_id", String(128), nullable=False),
    Column("actor", String(128), nullable=False),
    Column("reason", Text, nullable=False),
    Column("moved_at", UtcDateTime, nullable=False),
    _of_model(),
)

published_version = Table(
    "published_version",
    metadata,
    _tenant(primary_key=True),
    Column("model", String(64), primary_key=True),
    Column("version", BigInteger, primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("manifest", JSON, nullable=False),
    Column("run_id", String(64), nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("published_at", UtcDateTime, nullable=False),
    # Set when retention removes the version's files; the row stays, so that a late fact cannot bring it back.
    Column("removed_at", UtcDateTime, nullable=True),
    _of_model(),
)

engine_lease = Table(
    "engine_lease",
    metadata,
    _tenant(),
    Column("engine_id", String(128), primary_key=True),
    Column("model", String(64), nullable=False),
    Column("channel", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Index("engine_lease_by_model", "model", "expires_at"),
    _of_model(),
)

gate_job = Table(
    "gate_job",
    metadata,
    _tenant(primary_key=True),
    Column("checkpoint_id", String(128), primary_key=True),
    Column("model", String(64), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("run_id", String(64), nullable=False),
    Column("phase", String(16), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("traceparent", String(64), nullable=False),
    Column("gate", JSON, nullable=True),
    Column("profile", JSON, nullable=True),
    Column("taskset_digest", String(64), nullable=False),
    Column("taskset_revision", Integer, nullable=False),
    # The model's name while the job runs, else null: unique, so that one job of a model runs at a time.
    Column("active_for_model", String(64), nullable=True),
    UniqueConstraint("tenant", "active_for_model", name="gate_job_active_once"),
    Index("gate_job_by_phase", "phase", "model", "version"),
    _of_checkpoint(),
)

evaluation = Table(
    "evaluation",
    metadata,
    _tenant(),
    Column("run_id", String(64), primary_key=True),
    Column("checkpoint_id", String(128), nullable=False),
    Column("taskset", String(256), nullable=False),
    Column("taskset_digest", String(64), nullable=False),
    Column("profile_key", String(128), nullable=False),
    Column("num_tasks", Integer, nullable=False),
    Column("tallies", JSON, nullable=False),
    Column("finished_at", UtcDateTime, nullable=False),
    Index("evaluation_by_checkpoint", "checkpoint_id", "taskset_digest"),
    _of_checkpoint(),
)

evaluation_request = Table(
    "evaluation_request",
    metadata,
    _tenant(primary_key=True),
    Column("request_id", String(384), primary_key=True),
    Column("checkpoint_id", String(128), nullable=False),
    Column("taskset_digest", String(64), nullable=False),
    Column("profile_key", String(128), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("run_id", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("detail", Text, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Index("evaluation_request_by_run", "run_id"),
    Index("evaluation_request_by_checkpoint", "checkpoint_id", "taskset_digest", "attempt"),
    _of_checkpoint(),
)
