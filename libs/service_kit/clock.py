"""The time and fresh ids. Use cases receive these functions as arguments, so that tests can replace them."""

import uuid
from datetime import UTC, datetime


def utc_now() -> datetime:
    """The current time, aware, in UTC."""
    return datetime.now(UTC)


def new_id(prefix: str) -> str:
    """A fresh random id `<prefix>-<12 hex digits>`; 48 bits: on a clash ask again."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"
