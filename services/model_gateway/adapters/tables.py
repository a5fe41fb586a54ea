"""The gateway's tables."""

from sqlalchemy import JSON, BigInteger, Boolean, Column, Float, Index, Integer, MetaData, String, Table, Text

from identities.tenants import DEFAULT_TENANT
from sql_store import UtcDateTime

metadata = MetaData()

api_key = Table(
    "api_key",
    metadata,
    Column("key_id", String(32), primary_key=True),
    Column("tenant", String(64), nullable=False, server_default=DEFAULT_TENANT),
    Column("secret_sha256", String(64), nullable=False),
    Column("name", String(128), nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("models", JSON, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("revoked_at", UtcDateTime, nullable=True),
)

usage = Table(
    "usage",
    metadata,
    Column("request_id", String(128), primary_key=True),
    Column("tenant", String(64), nullable=False, server_default=DEFAULT_TENANT),
    Column("key_id", String(32), nullable=False),
    Column("path", String(64), nullable=False),
    Column("model", String(128), nullable=False),
    Column("version", BigInteger, nullable=True),
    Column("digest", String(64), nullable=False),
    Column("status", Integer, nullable=False),
    Column("error", Text, nullable=False),
    Column("streamed", Boolean, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("first_byte_s", Float, nullable=True),
    Column("duration_s", Float, nullable=False),
    Index("usage_by_key", "key_id", "started_at"),
    Index("usage_by_model", "model", "started_at"),
)
