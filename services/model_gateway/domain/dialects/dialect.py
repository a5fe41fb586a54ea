"""What a dialect is, and the error envelope of OpenAI's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from model_gateway.domain.calls import CallLimits, CompletionCall
from model_gateway.domain.errors import GatewayError
from model_gateway.domain.fields import FieldTable

Body = dict[str, Any]

SESSION_PREFIX: Final = "/s/{session_id}"
"""Of the base URL that names a recorded session."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as its client wrote it, and the call that it became."""

    body: Mapping[str, Any]
    call: CompletionCall
    request_id: str
    at_s: int


@dataclass(frozen=True, slots=True)
class DialectEvent:
    """One server-sent event. `name` is also the `type` of its data."""

    name: str
    data: Body


class DialectStream(Protocol):
    """Turns the chunks of a streamed chat reply into a dialect's events, in order."""

    def begin(self) -> list[DialectEvent]:
        """Before the first chunk."""

    def feed(self, chunk: Mapping[str, Any]) -> list[DialectEvent]:
        """Of one chunk."""

    def end(self) -> list[DialectEvent]:
        """After the last chunk."""

    def failed(self, error: Mapping[str, Any]) -> list[DialectEvent]:
        """The stream cannot go on; `error` is the content of OpenAI's envelope."""


def openai_envelope(error: GatewayError, request_id: str) -> Body:
    """The envelope that OpenAI's clients read, with the id under which the gateway's log has the request."""
    said = {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
    return {"error": said, "request_id": request_id}


@dataclass(frozen=True, slots=True)
class Dialect:
    """One route. `reply` and `events` are None where the engine's own bytes are the answer."""

    path: str
    aliases: tuple[str, ...]
    summary: str
    fields: FieldTable
    required: tuple[str, ...]
    read: Callable[[bytes, Any, CallLimits], CompletionCall]
    reply: Callable[[Asked, Mapping[str, Any]], Body] | None = None
    events: Callable[[Asked], DialectStream] | None = None
    envelope: Callable[[GatewayError, str], Body] = openai_envelope
    request_id_header: str = "x-request-id"
    has_sessions: bool = True
    params: Mapping[str, str] = field(default_factory=dict)
    """Fields of the chat call by their name here, for an engine's refusal."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All at which it is served. Those of a recorded session have its id in them."""
        with_session = (SESSION_PREFIX + self.path,) if self.has_sessions else ()
        return (self.path, *self.aliases, *with_session)
