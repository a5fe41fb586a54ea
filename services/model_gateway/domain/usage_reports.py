"""Reports of usage: what is asked for, who may see it, and what a row of one says."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from model_gateway.domain.errors import BadRequest
from model_gateway.domain.keys import ADMIN, ApiKey

BY: Final = ("day", "key", "model")
"""What usage is added up by, in the order of a row."""
MAX_ROWS: Final = 10_000
_DEFAULT: Final = timedelta(days=7)
_PARAMETERS: Final = ("since", "by")


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """since: of requests that began then or later. by: some of BY, in its order; none: one total. key_id: of
    this key alone; None: of all."""

    since: datetime
    by: tuple[str, ...]
    key_id: str | None

    @property
    def scope(self) -> str:
        """For clients: whose usage it is."""
        return "all" if self.key_id is None else "own"


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Sums of requests. day: `2026-11-27`, UTC. What they are not added up by is empty. key_name: as
    `create-key` was told, of keys that the gateway made. failed: of the requests, those with a status from
    400."""

    day: str
    key_id: str
    key_name: str
    model: str
    requests: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cost: float


def read_query(parameters: Mapping[str, str], key: ApiKey, now: datetime) -> UsageQuery:
    """What a key asks for: a key of scope admin about all keys, any other one about itself. Raises
    BadRequest."""
    for name in parameters.keys() - set(_PARAMETERS):
        raise BadRequest(f"unknown parameter {name!r:.80}; there are {', '.join(_PARAMETERS)}", param=name)
    said = parameters.get("since", "")
    return UsageQuery(
        since=_moment(said) if said else now - _DEFAULT,
        by=_columns(parameters.get("by", "model")),
        key_id=None if ADMIN in key.scopes else key.key_id,
    )


def _moment(said: str) -> datetime:
    try:
        found = datetime.fromisoformat(said)
    except ValueError:
        raise BadRequest(
            f"since is {said!r:.80}, expected a date or a moment such as 2026-11-20 or 2026-11-20T08:00:00Z",
            param="since",
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _columns(said: str) -> tuple[str, ...]:
    named = [name for name in said.split(",") if name]
    for name in named:
        if name not in BY:
            raise BadRequest(f"by is {said!r:.80}, expected some of {', '.join(BY)}", param="by")
    return tuple(name for name in BY if name in named)


def too_many_rows() -> BadRequest:
    """Of a report."""
    return BadRequest(
        f"the report has more than {MAX_ROWS} rows: ask for a later since, or by fewer of {', '.join(BY)}",
        param="by",
    )
