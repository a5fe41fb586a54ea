"""What is kept of every request: a row for accounting."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One served or refused request, for accounting. No content."""

    request_id: str
    key_id: str
    path: str
    model: str
    version: int | None
    digest: str
    status: int
    error: str
    streamed: bool
    prompt_tokens: int
    completion_tokens: int
    started_at: datetime
    first_byte_s: float | None
    duration_s: float
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What one key used of one model in some days. cost: by the prices at the time of each request."""

    model: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: float
