"""Decisions: facts of which the first of all authors wins, for as long as the stream keeps it.

Each is stored on the condition that nothing is stored about the same thing yet: an episode's outcome, a
group's end, a step. The server checks it, so there is no window and no lock. EVENTS gets a copy of each, in
the order in which they were decided; who lost reads the stored decision here.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

from event_bus import codec, metrics
from event_bus.codec import Encoded
from event_bus.delivery import BusTimings, PubAck
from event_bus.errors import AlreadyDecided, MalformedEvent, NotOurDecision
from event_bus.publisher import Outgoing, Publisher
from event_bus.readers import ProvisionClient
from event_bus.rights import Rights
from event_bus.topology import DECISIONS, EVENTS, Topology
from identities import subjects
from identities.tenants import OWN_TENANT
from upcycle.errors import Unavailable

_LOG = logging.getLogger(__name__)
MAX_TOGETHER: Final = 1000
"""Decisions that stand or fall together: the server's limit of one batch."""
_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Decision:
    """How one author decides one thing: `event_id` says which. author: where the type has several."""

    event: Message
    model: str
    event_id: str
    author: str = ""
    tenant: str = OWN_TENANT


async def decide_each(
    decide: Callable[[Sequence[Decision]], Awaitable[Sequence[Message | None]]],
    decisions: Sequence[Decision],
    follow: Callable[[Decision, Message], None],
) -> None:
    """Decide again without those that were decided before, for as long as one of them has the others refused.

    decide: EventBus.decide. follow: called with each decision and the stored one; what it raises ends this.
    """
    while decisions:
        stored = await decide(decisions)
        for decision, found in zip(decisions, stored, strict=True):
            if found is not None:
                follow(decision, found)
        decisions = [one for one, found in zip(decisions, stored, strict=True) if found is None]


class Decisions:
    """Publishes decisions and reads those that stand."""

    def __init__(
        self,
        jetstream: Callable[[], JetStreamContext],
        publisher: Publisher,
        topology: Topology,
        timings: BusTimings,
        *,
        rights: Rights | None = None,
        provision: ProvisionClient | None = None,
    ) -> None:
        """rights: of this process, where it has a key of a service. provision: who copies then."""
        self._rights = rights
        self._provision = provision
        self._jetstream = jetstream
        self._publisher = publisher
        self._topology = topology
        self._timings = timings

    async def publish(self, message: Encoded, subject: str, event_id: str, *, again: bool = False) -> PubAck:
        """Decide, unless it is decided: then the ack is a duplicate, with the sequence of the first.

        again: publish the stored decision to EVENTS once more, because EVENTS may have lost its copy. So is
        another author's decision that came first: this author may not have read it.
        """
        if self._rights is not None and not self._rights.may_publish(subject):
            return await self._copied(subject, self._rights.service)
        deadline = time.monotonic() + self._timings.publish_budget_s
        outgoing = _outgoing(message, subject, event_id)
        while True:
            try:
                return await self._alone(outgoing)
            except AlreadyDecided as error:
                if (stored := await self._newest(subject)) is not None:
                    if again or stored.subject != subject:
                        await self._copy(stored)
                    metrics.DECIDED_BEFORE.labels(subjects.template_of(subject)).inc()
                    return PubAck(DECISIONS, stored.seq or 0, duplicate=True)
                await _pause(deadline, error)

    async def _copied(self, subject: str, service: str) -> PubAck:
        """Of what only another service may decide. Raises NotOurDecision where nothing is decided."""
        if (stored := await self._newest(subject)) is None:
            raise NotOurDecision(
                f"{DECISIONS} holds no decision about what {subject} decides, and {service} may only have a "
                "stored one copied: the service that decides it has to publish it"
            )
        await self._copy(stored)
        return PubAck(DECISIONS, stored.seq or 0, duplicate=True)

    async def decide(self, decisions: Sequence[Decision]) -> list[Message | None]:
        """Publish all or, where one of them is decided already, none. Returns the stored decision for each,
        in order: None where there is none, because another one was refused. Of each, the stream of facts
        gets another copy: it may be decided again because readers lack the first.

        Raises EventTooLarge, UnknownEvent; Unavailable.
        """
        deadline = time.monotonic() + self._timings.publish_budget_s
        batch = [self._addressed(one) for one in decisions]
        while True:
            try:
                await self._together(batch)
                return [one.event for one in decisions]
            except AlreadyDecided as error:
                found = [await self._newest(one.subject) for one in batch]
                if any(found):
                    return [None if raw is None else await self._repeated(raw) for raw in found]
                await _pause(deadline, error)

    async def standing(self, decision: Decision) -> Message | None:
        """The stored decision about the same thing, of any author; None before one is stored. Raises
        Unavailable."""
        stored = await self._newest(self._addressed(decision).subject)
        return None if stored is None else self._decoded(stored)

    async def repeat(self, decision: Decision) -> bool:
        """Copy the stored decision about the same thing, of any author, to the facts again. Returns False
        where there is none. Raises Unavailable."""
        return await self.repeat_about(self._addressed(decision).subject)

    async def repeat_about(self, decided: str) -> bool:
        """`repeat`, of what the subject `decided` is about. Raises UnknownEvent, Unavailable."""
        self._topology.decided_by(decided)
        stored = await self._newest(decided)
        if stored is not None:
            await self._copy(stored)
        return stored is not None

    async def _repeated(self, stored: RawStreamMsg) -> Message:
        """The stored decision, copied to the facts once more."""
        metrics.DECIDED_BEFORE.labels(subjects.template_of(stored.subject or "")).inc()
        await self._copy(stored)
        return self._decoded(stored)

    async def _together(self, batch: Sequence[Outgoing]) -> None:
        """Raises AlreadyDecided where one of them is decided."""
        if len(batch) > 1:
            await self._publisher.publish_together(batch, stream=DECISIONS)
        else:
            await self._alone(batch[0])

    async def _alone(self, one: Outgoing) -> PubAck:
        """Raises AlreadyDecided where it is decided."""
        ack = await self._publisher.publish(one.subject, one.payload, one.headers, stream=DECISIONS)
        if ack.duplicate:
            raise AlreadyDecided(f"{one.headers[codec.EVENT_ID]!r} came before")
        return ack

    async def _copy(self, stored: RawStreamMsg) -> None:
        """As the server copies it; while the stream of facts remembers its id, that adds nothing."""
        decided, headers = stored.subject or "", stored.headers or {}
        if self._provision is not None:
            return await self._copied_by(self._provision, decided)
        subject = subjects.copied(decided, self._topology.verb_of(self._topology.decided_by(decided)))
        own = {name: text for name, text in headers.items() if not _is_of_server(name)}
        await self._publisher.publish(subject, stored.data or b"", own, stream=EVENTS)

    async def _copied_by(self, provision: ProvisionClient, decided: str) -> None:
        try:
            await provision.copy(decided)
        except NatsError as error:
            raise Unavailable(f"provisioning, to copy the decision {decided}: {error!r}") from error

    def _addressed(self, decision: Decision) -> Outgoing:
        event, model, event_id = decision.event, decision.model, decision.event_id
        tenant, author = decision.tenant, decision.author
        _, subject = self._topology.address(type(event), model, event_id, tenant=tenant, author=author)
        return _outgoing(codec.encoded(event), subject, event_id)

    def _decoded(self, raw: RawStreamMsg) -> Message:
        try:
            decided = self._topology.decided_by(raw.subject or "")
            return codec.decode(decided, raw.data or b"", raw.headers or {})
        except MalformedEvent as error:
            raise MalformedEvent(f"the decision on {raw.subject}: {error}") from error

    async def _newest(self, subject: str) -> RawStreamMsg | None:
        """Asked of the stream's leader: another replica may not have the decision that won yet."""
        try:
            return await self._jetstream().get_last_msg(DECISIONS, subjects.of_any_author(subject))
        except NotFoundError:
            return None
        except NatsError as error:
            raise Unavailable(f"cannot read the decision on {subject} in {DECISIONS}: {error!r}") from error


def _is_of_server(header: str) -> bool:
    return header.startswith("Nats-") and header != codec.EVENT_ID


def _outgoing(message: Encoded, subject: str, event_id: str) -> Outgoing:
    headers: dict[str, Any] = {
        **codec.headers_for(message.message_type, event_id),
        codec.EXPECTED_SEQUENCE: "0",
        codec.EXPECTED_SUBJECT: subjects.of_any_author(subject),
    }
    return Outgoing(subject, message.payload, headers)


async def _pause(deadline: float, error: AlreadyDecided) -> None:
    """The decision that won is not readable yet, or aged out between refusal and reading: ask again."""
    if time.monotonic() + _PAUSE_S >= deadline:
        raise Unavailable(f"{error}, and {DECISIONS} does not show the decision; publish again") from error
    await asyncio.sleep(_PAUSE_S)
