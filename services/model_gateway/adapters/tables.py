"""The tables as SQLAlchemy Core sees them; `migrations/` makes them."""

from sqlalchemy import JSON, BigInteger, Boolean, Float, Integer, LargeBinary, MetaData, String, Table, Text

from sql_store import UtcDateTime, columns

metadata = MetaData()

api_key = Table(
    "api_key",
    metadata,
    *columns("key_id tenant secret_sha256 name", String),
    *columns("scopes models limits", JSON),
    *columns("created_at revoked_at", UtcDateTime),
    *columns("may_capture", Boolean),
)
usage = Table(
    "usage",
    metadata,
    *columns("request_id tenant key_id path model digest error", String),
    *columns("version prompt_tokens completion_tokens", BigInteger),
    *columns("status", Integer),
    *columns("streamed", Boolean),
    *columns("first_byte_s duration_s cost", Float),
    *columns("started_at", UtcDateTime),
)
recorded_session = Table(
    "recorded_session",
    metadata,
    *columns("tenant session_id key_id model state task_digest", String),
    *columns("captured", Boolean),
    *columns("num_calls num_bytes unrecorded_calls", BigInteger),
    *columns("labels", Text),
    *columns("opened_at last_call_at", UtcDateTime),
)
recorded_call = Table(
    "recorded_call",
    metadata,
    *columns("id", BigInteger),
    *columns("tenant session_id", String),
    *columns("messages tools", Text),
    *columns("turn", LargeBinary),
    *columns("temperature", Float),
    *columns("started_at ended_at", UtcDateTime),
)
