"""Readers without a durable: opened at a place of a stream, and removed by the server once they are not used.

To make one is administration: with the right to make consumers a process could have the server deliver what a
stream holds to any subject. So a service with a key asks provisioning (`event_bus.service_requests`). A
process without a key of a service makes its reader itself.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from event_bus.errors import RequestRefused
from event_bus.rights import COPY, READER
from identities import subjects
from upcycle.errors import Unavailable

_ANSWER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read: messages of `stream` after a sequence, in order, without acknowledgements."""

    stream: str
    filters: tuple[str, ...]
    after: int
    forgotten_after_s: float
    """Without a request for so long the server removes it."""
    headers_only: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True)
class Reader:
    """name: to pull from. num_pending: messages that it had to deliver when it was opened."""

    name: str
    num_pending: int


OpenReader = Callable[[Wanted], Awaitable[Reader]]
"""Raises NATS's errors, and RequestRefused."""


async def opened(jetstream: JetStreamContext, wanted: Wanted, name: str | None = None) -> Reader:
    """Make it. name: the server's choice where it is None. Raises NatsError."""
    config = ConsumerConfig(
        name=name,
        description=wanted.description,
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=wanted.after + 1,
        ack_policy=AckPolicy.NONE,
        filter_subjects=list(wanted.filters),
        headers_only=wanted.headers_only,
        inactive_threshold=wanted.forgotten_after_s,
        mem_storage=True,
    )
    info = await jetstream.add_consumer(wanted.stream, config)
    return Reader(str(info.name), info.num_pending or 0)


def made_here(jetstream: Callable[[], JetStreamContext]) -> OpenReader:
    """For a process that may make readers."""

    async def open_reader(wanted: Wanted) -> Reader:
        return await opened(jetstream(), wanted)

    return open_reader


class ProvisionClient:
    """What provisioning does for a service. Raises RequestRefused; NATS's errors where it does not answer."""

    def __init__(self, client: Callable[[], Client], service: str) -> None:
        self._client = client
        self._service = service

    async def open_reader(self, wanted: Wanted) -> Reader:
        """An OpenReader."""
        answer = await self._ask(READER, asdict(wanted))
        return Reader(str(answer["name"]), int(answer["num_pending"]))

    async def copy(self, decided: str) -> bool:
        """Copy the decision that stands about the same as the subject `decided` to the facts once more. False
        where there is none."""
        return bool((await self._ask(COPY, {"decided": decided}))["copied"])

    async def _ask(self, what: str, question: dict[str, Any]) -> dict[str, Any]:
        subject = subjects.request(self._service, what)
        reply = await self._client().request(subject, json.dumps(question).encode(), timeout=_ANSWER_S)
        answer: dict[str, Any] = json.loads(reply.data)
        if "unavailable" in answer:
            raise Unavailable(str(answer["unavailable"]))
        if "refused" in answer:
            raise RequestRefused(f"provisioning refuses {self._service} a {what}: {answer['refused']}")
        return answer
