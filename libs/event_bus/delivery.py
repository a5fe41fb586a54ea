"""What a handler receives, and what a publisher gets back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from identities import subjects

M = TypeVar("M", bound=Message, covariant=True)
TRIES: Final = 3
"""Failures of a handler after which it should publish a failure instead of raising again."""


@dataclass(frozen=True, slots=True)
class Delivery(Generic[M]):
    """One message as it reached this process; the same message may come more than once."""

    message: M
    subject: str
    event_id: str
    """The publisher's deterministic id; equal ids are the same event."""
    sequence: int
    """Position in the stream: total order, gaps possible."""
    num_delivered: int
    """1 on the first delivery. Always 1 for replays."""
    published_at: datetime
    """When the stream stored it; aware, UTC."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """As they came; W3C trace context among them, for spans that link to this event."""
    failures: int = 0
    """Earlier deliveries to this durable that failed. `Unavailable` and a drain are no failures."""

    @property
    def is_last_try(self) -> bool:
        """A bug is retried; a handler that fails in the last try publishes a failure as its outcome."""
        return self.failures + 1 >= TRIES

    @property
    def tenant(self) -> str:
        """Whose event it is."""
        return subjects.tenant_of(self.subject)


@dataclass(frozen=True, slots=True)
class PubAck:
    """The stream has the event on disk."""

    stream: str
    sequence: int
    duplicate: bool
    """The stream already held an event with this id, or another decision about the same thing; nothing was
    added, and `sequence` is that of the stored one."""


@dataclass(frozen=True, slots=True)
class BusTimings:
    """How long things may take, in seconds; the defaults are what production uses."""

    publish_timeout_s: float = 5.0
    """One attempt of a publish."""
    publish_budget_s: float = 20.0
    """All attempts of a publish; longer than the election of a new stream leader (7.4 s were measured)."""
    connect_s: float = 30.0
    """Until the first connection, and until streams and durables are there, at start."""
    drain_s: float = 15.0
    """What handlers in flight get at stop before they are cancelled and their messages nacked."""
    silence_s: float = 12.0
    """A server that answers no ping for so long is connected to anew, and `readyz` says so meanwhile. This
    alone notices a link on which nothing arrives and nothing is refused."""
    pull_s: float = 3.0
    """Timeout of one pull request; after a reconnect an idle consumer gets no message for at most this
    long.
    """
    gather_s: float = 0.05
    """What a projection waits after a small batch, so that the next transaction is about more messages."""
    first_retry_s: float = 0.5
    """Delay before the second attempt of a failed message; doubles with each failure."""
    max_retry_s: float = 30.0
    """Largest such delay."""
    unavailable_s: float = 2.0
    """Delay after an Unavailable of a handler that names none."""
    close_s: float = 5.0
    """Closing the connection at stop."""
