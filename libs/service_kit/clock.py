"""The two impure facts that use cases receive as arguments: the time and a fresh id."""

import uuid
from datetime import UTC, datetime


def utc_now() -> datetime:
    """The current time, aware, in UTC."""
    return datetime.now(UTC)


def new_id(prefix: str) -> str:
    """A fresh random id `<prefix>-<12 hex digits>`; 48 bits: on a clash ask again."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"
