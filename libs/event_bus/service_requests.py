"""What provisioning does for services that have keys, because it takes rights that they must not have.

A service asks on a subject that names it, and on which no other may publish (`event_bus.rights`). `reader`
opens a reader of facts or of dead letters; `copy` copies a decision that stands to the facts once more.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import Mapping
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from event_bus.connection import connected
from event_bus.decisions import Decisions
from event_bus.delivery import BusTimings
from event_bus.errors import BusError, RequestRefused
from event_bus.publisher import Publisher
from event_bus.readers import Wanted, opened
from event_bus.rights import PROVISION, READER, SERVICES, pulls_of_reader, rights_of
from event_bus.topology import DLQ, EVENTS, UPCYCLE, Topology
from identities import subjects
from service_kit.groups import BusSettings
from service_kit.loops import first_of
from upcycle.errors import Unavailable

_LOG = logging.getLogger(__name__)
_API_TIMEOUT_S: Final = 5.0
_AT_ONCE: Final = 64
_LONGEST_S: Final = 120.0
"""A reader that is not used is gone after so long at most."""
_MAX_FILTERS: Final = 100
_PAUSE_S: Final = 0.5
_TOKENS_OF_A_DECISION: Final = 7


class ServiceRequests:
    """Answers until it is stopped; several processes share the questions."""

    def __init__(self, settings: BusSettings, topology: Topology = UPCYCLE) -> None:
        self._settings = settings
        self._topology = topology
        self._trouble: str | None = "not connected to NATS"
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def ready(self) -> str | None:
        """Why no question is answered."""
        return self._trouble

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped; what NATS does not answer is tried again."""
        async with first_of(self._answer_on(), stop.wait()) as (answering, _):
            if answering.done():
                answering.result()

    async def _answer_on(self) -> None:
        while True:
            try:
                async with connected(self._settings, "upcycle-provision requests") as client:
                    await self._serve(client)
            except Unavailable as error:
                self._trouble = str(error)
            await asyncio.sleep(_PAUSE_S)

    async def _serve(self, client: Client) -> None:
        jetstream = client.jetstream(timeout=_API_TIMEOUT_S)
        timings = BusTimings()
        publisher = Publisher(lambda: jetstream, timings)
        self._decisions = Decisions(lambda: jetstream, publisher, self._topology, timings)
        subscription = await client.subscribe(subjects.request(None, None), queue=PROVISION)
        self._trouble = None
        async with asyncio.TaskGroup() as answers:
            async for question in subscription.messages:
                await self._slots.acquire()
                answers.create_task(self._answered(client, question))

    async def _answered(self, client: Client, question: Msg) -> None:
        try:
            answer = await self._answer(client, question)
            await question.respond(json.dumps(answer).encode())
        except NatsError as error:  # the service asks again
            _LOG.warning("service_answer_lost", extra={"subject": question.subject, "error": repr(error)})
        finally:
            self._slots.release()

    async def _answer(self, client: Client, question: Msg) -> Mapping[str, Any]:
        try:
            service, asked = _asked(question)
            if question.subject == subjects.request(service, READER):
                jetstream = client.jetstream(timeout=_API_TIMEOUT_S)
                reader = await opened(jetstream, _wanted(service, asked), name=uuid.uuid4().hex)
                return {"name": reader.name, "num_pending": reader.num_pending}
            return {"copied": await self._decisions.repeat_about(_decided(asked))}
        except BusError as error:
            _LOG.warning("service_request_refused", extra={"subject": question.subject, "error": str(error)})
            return {"refused": str(error)}
        except (Unavailable, NatsError) as error:
            return {"unavailable": str(error)}
        except Exception as error:  # of one question; the others are to be answered
            _LOG.exception("service_request_failed", extra={"subject": question.subject})
            return {"unavailable": f"provisioning failed: {type(error).__name__}"}


def _asked(question: Msg) -> tuple[str, Mapping[str, Any]]:
    """Who asks, and what. Raises RequestRefused."""
    service = subjects.service_of_request(question.subject)
    if service not in SERVICES or question.subject not in rights_of(service).asks:
        raise RequestRefused(f"{question.subject} is no question of a service")
    try:
        asked = json.loads(question.data)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"{question.subject} carries no JSON: {error}") from error
    if not isinstance(asked, dict):
        raise RequestRefused(f"{question.subject} carries no JSON object")
    return service, asked


def _decided(asked: Mapping[str, Any]) -> str:
    """Raises RequestRefused for what is no subject of one decision."""
    decided = str(asked.get("decided"))
    if (
        len(decided.split(".")) != _TOKENS_OF_A_DECISION
        or not decided.isprintable()
        or set(decided) & set("*> ")
    ):
        raise RequestRefused(f"{decided[:200]!r} is no subject of a decision")
    return decided


class _Reader(BaseModel):
    """A question for a reader, as `Wanted` is sent."""

    model_config = ConfigDict(extra="forbid", strict=True)

    stream: str
    filters: list[str] = Field(min_length=1, max_length=_MAX_FILTERS)
    after: int = Field(ge=0, lt=2**63)
    forgotten_after_s: float = Field(gt=0, le=_LONGEST_S)
    headers_only: bool = False
    description: str = Field("", max_length=200)


def _wanted(service: str, asked: Mapping[str, Any]) -> Wanted:
    """Raises RequestRefused for a stream, a filter or a time that no reader of the service needs."""
    try:
        wanted = _Reader.model_validate(asked)
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:3])
        raise RequestRefused(f"no description of a reader: {said:.500}") from error
    if pulls_of_reader(wanted.stream) not in rights_of(service).pulls or wanted.stream not in (EVENTS, DLQ):
        raise RequestRefused(f"{service} has no reader of stream {wanted.stream[:100]!r}")
    return Wanted(**{**wanted.model_dump(), "filters": tuple(wanted.filters)})
