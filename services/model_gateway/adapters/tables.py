"""The tables as SQLAlchemy Core sees them; `migrations/` makes them."""

from sqlalchemy import JSON, BigInteger, Boolean, Float, Integer, MetaData, String, Table

from sql_store import UtcDateTime, columns

metadata = MetaData()

api_key = Table(
    "api_key",
    metadata,
    *columns("key_id tenant secret_sha256 name", String),
    *columns("scopes models", JSON),
    *columns("created_at revoked_at", UtcDateTime),
)
usage = Table(
    "usage",
    metadata,
    *columns("request_id tenant key_id path model digest error", String),
    *columns("version prompt_tokens completion_tokens", BigInteger),
    *columns("status", Integer),
    *columns("streamed", Boolean),
    *columns("first_byte_s duration_s", Float),
    *columns("started_at", UtcDateTime),
)
