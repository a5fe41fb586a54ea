"""What is kept of a request: a row for accounting, and where capture is switched on the exchange itself."""

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


@dataclass(frozen=True, slots=True)
class CapturedExchange:
    """One exchange, word for word, for capture."""

    request_id: str
    model: str
    version: int
    digest: str
    request: bytes
    response: bytes
    sampled_at: datetime
