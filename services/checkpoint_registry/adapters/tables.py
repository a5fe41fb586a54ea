"""The tables as SQLAlchemy Core sees them; `migrations/` makes them, and the outbox, which is sql_store's."""

from sqlalchemy import JSON, BigInteger, Float, Integer, LargeBinary, MetaData, String, Table

from sql_store import UtcDateTime, columns

metadata = MetaData()

model = Table(
    "model",
    metadata,
    *columns("tenant model forked_from_checkpoint_id head_checkpoint_id", String),
    *columns("head_version head_revision", BigInteger),
    *columns("created_at", UtcDateTime),
)
checkpoint = Table(
    "checkpoint",
    metadata,
    *columns("tenant checkpoint_id model parent_checkpoint_id digest state run_id reason gate_json", String),
    *columns("version step", BigInteger),
    *columns("manifest training_state metrics sources", JSON),
    *columns("created_at", UtcDateTime),
)
head_move = Table(
    "head_move",
    metadata,
    *columns("tenant model from_checkpoint_id to_checkpoint_id actor reason", String),
    *columns("revision", BigInteger),
    *columns("moved_at", UtcDateTime),
)
published_version = Table(
    "published_version",
    metadata,
    *columns("tenant model digest run_id", String),
    *columns("version step", BigInteger),
    *columns("manifest training_state", JSON),
    *columns("published_at removed_at", UtcDateTime),
)
engine_lease = Table(
    "engine_lease",
    metadata,
    *columns("tenant engine_id model", String),
    *columns("channel", Integer),
    *columns("body", LargeBinary),
    *columns("expires_at", UtcDateTime),
)
policy_hold = Table(
    "policy_hold",
    metadata,
    *columns("tenant model holder engine_id", String),
    *columns("version", BigInteger),
    *columns("expires_at", UtcDateTime),
)
api_key = Table(
    "api_key",
    metadata,
    *columns("tenant key_id sha256 name role created_by revoked_by", String),
    *columns("scopes", JSON),
    *columns("created_at expires_at revoked_at last_used_at", UtcDateTime),
)
canary_release = Table(
    "canary_release",
    metadata,
    *columns("tenant model checkpoint_id actor reason", String),
    *columns("revision version", BigInteger),
    *columns("share shadow_share", Float),
    *columns("changed_at", UtcDateTime),
)
gate_job = Table(
    "gate_job",
    metadata,
    *columns("tenant checkpoint_id model run_id phase traceparent taskset_digest active_for_model", String),
    *columns("version", BigInteger),
    *columns("taskset_revision", Integer),
    *columns("gate gate_options profile", JSON),
    *columns("head_checkpoint_id", String),
    *columns("head_revision", BigInteger),
    *columns("level", Float),
    *columns("created_at", UtcDateTime),
)
pair_run = Table(
    "pair_run",
    metadata,
    *columns("tenant request_id checkpoint_id model head_checkpoint_id run_id state detail", String),
    *columns("taskset taskset_digest profile_key source_digest", String),
    *columns("head_revision number attempts", BigInteger),
    *columns("families outcomes", JSON),
    *columns("updated_at", UtcDateTime),
)
watch_run = Table(
    "watch_run",
    metadata,
    *columns("tenant request_id model run_id state detail beside source_digest", String),
    *columns("head_revision number", BigInteger),
    *columns("engine_s", Float),
    *columns("pairs", JSON),
    *columns("updated_at", UtcDateTime),
)
gate_test = Table(
    "gate_test",
    metadata,
    *columns("tenant checkpoint_id run_id", String),
    *columns("head_revision", BigInteger),
    *columns("promoted", Integer),
    *columns("level", Float),
    *columns("tested_at", UtcDateTime),
)
evaluation = Table(
    "evaluation",
    metadata,
    *columns("tenant run_id checkpoint_id taskset taskset_digest profile_key source_digest", String),
    *columns("num_tasks", Integer),
    *columns("tallies", JSON),
    *columns("finished_at", UtcDateTime),
)
evaluation_request = Table(
    "evaluation_request",
    metadata,
    *columns("tenant request_id checkpoint_id taskset_digest profile_key run_id state detail", String),
    *columns("attempt", Integer),
    *columns("updated_at", UtcDateTime),
)
