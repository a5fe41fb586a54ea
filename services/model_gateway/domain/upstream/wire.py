"""What a provider's dialect is here: a pure pair, the call to its request and its answer to OpenAI's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from model_gateway.domain.calls import CompletionCall
from model_gateway.domain.upstream.providers import Provider, UpstreamModel
from model_gateway.domain.upstream.sse import ServerEvent

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """path: behind the provider's URL."""

    path: str
    body: Body


class ReplyStream(Protocol):
    """Turns a provider's events into the chunks of OpenAI's stream."""

    @property
    def is_done(self) -> bool:
        """Whether the answer is whole, should no more come."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing more can come."""

    def feed(self, event: ServerEvent) -> list[Body]:
        """The chunks of one event. Raises ValueError for what is none, UpstreamFailed for an error."""


@dataclass(frozen=True, slots=True)
class UpstreamWire:
    """One dialect."""

    headers: Callable[[Provider], Mapping[str, str]]
    request: Callable[[CompletionCall, UpstreamModel], UpstreamRequest]
    reply: Callable[[Mapping[str, Any], UpstreamModel], Mapping[str, Any]]
    stream: Callable[[UpstreamModel, int], ReplyStream]


def words(text: str) -> frozenset[str]:
    """Names of fields, with spaces between."""
    return frozenset(text.split())
