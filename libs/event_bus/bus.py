"""EventBus: the one connection of a process to NATS, over FastStream's broker.

Each message is delivered at least once, and stored once per event id within the duplicate window. When the
connection is closed for good the process ends with status 70, because NATS's client does not reconnect then.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from google.protobuf.message import Message

from event_bus import codec, replays, unread
from event_bus.attempts import AttemptNotes
from event_bus.batches import BatchConsumer
from event_bus.codec import Encoded
from event_bus.connection import BusConnection
from event_bus.decisions import Decision, Decisions
from event_bus.delivery import BusTimings, Delivery, PubAck
from event_bus.deps import ConsumerDeps
from event_bus.errors import BusError, CursorBeyondStream, UnknownEvent
from event_bus.faststream_ext.subscriber import DEPS, DurableSubscriber
from event_bus.incoming import Decoder, InFlight
from event_bus.middlewares import event_middlewares
from event_bus.publisher import Publisher, Stored
from event_bus.router import Ephemeral, EventRouter, Projection
from event_bus.topology import DECISIONS, EVENTS, TASKS, UPCYCLE, ConsumerSpec, Topology
from event_bus.watch import StreamWatch
from identities import subjects
from identities.tenants import OWN_TENANT
from service_kit.component import ALARM
from service_kit.errors import as_errors
from service_kit.groups import BusSettings
from service_kit.loops import ended

_LOG = logging.getLogger(__name__)
_TEAR_DOWN_S: Final = 5.0
_LAST_LOOK_S: Final = 2.0
_NAMED: Final = 5
"""Missing durables that a readiness page names."""


class EventBus:
    """Publishes, subscribes and replays. One per process; constructing it does no I/O."""

    name = "bus"

    def __init__(
        self,
        settings: BusSettings,
        *,
        client_name: str,
        topology: Topology = UPCYCLE,
        timings: BusTimings | None = None,
    ) -> None:
        self._topology = topology
        self._client_name = client_name
        self._timings = timings or BusTimings()
        self._connection = BusConnection(settings, client_name, self._timings)
        self._publisher = Publisher(self._connection.jetstream, self._timings)
        self._connection.on_reconnect(self._publisher.try_again_now)
        self._decisions = Decisions(
            self._connection.jetstream,
            self._publisher,
            self._topology,
            self._timings,
            rights=self._connection.rights,
            provision=self._connection.provision,
        )
        notes = AttemptNotes(self._connection.jetstream)
        self._deps = ConsumerDeps(self._publisher, notes, InFlight(), self._timings)
        self._connection.broker.context.set_global(DEPS, self._deps)
        for middleware in event_middlewares(self._deps):
            self._connection.broker.add_middleware(middleware)
        self._watch = StreamWatch(
            self._connection, topology.streams, keeps_its_place=replays.name_of(client_name)
        )
        self.on_facts_lost: Callable[[int, int], None] = lambda after, first: None
        """What `replay` calls where facts after the cursor are gone: (cursor, first sequence there is)."""
        self._durables: list[ConsumerSpec] = []
        self._given_up = unread.GivenUp(self._connection.open_reader)
        self._batches: list[BatchConsumer] = []
        self._loops: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._started = False
        self._newest = 0

    def include_router(self, router: EventRouter) -> None:
        """Take the handlers of a router. Before `start`."""
        for spec in router.durables:
            self._bind(spec)
        self._connection.broker.include_router(router)
        for projection in router.projections:
            self._add_projection(projection)
        for ephemeral in router.ephemerals:
            self._add_ephemeral(ephemeral)

    async def start(self) -> None:
        """Connect, check that streams and durables are there, begin to consume. Raises Unavailable,
        NotProvisioned, OutdatedDurable.
        """
        if self._started:
            raise BusError("this EventBus was already started; make a new one")
        self._started = True
        try:
            await self._connection.open()
            wanted = {spec: frozenset(self._topology.filters_of(spec)) for spec in self._durables}
            await self._connection.await_provisioned(self._topology.streams, wanted)
            await self._watch.begin()
            self._newest = await replays.last_sequence(self._connection.jetstream())
            await self._connection.broker.start()
        except BaseException:
            await self._connection.close()
            raise
        for name, loop in (*self._loops, ("watch", self._watch.run)):
            self._tasks.append(asyncio.create_task(self._kept_alive(name, loop), name=f"bus/{name}"))

    async def stop(self) -> None:
        """Stop pulling, let handlers in flight finish (bounded), nack the rest, disconnect. Never
        raises for NATS.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        for task in self._tasks:
            task.cancel()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._deps.in_flight.drain(self._timings.drain_s))
            group.create_task(self._connection.broker.stop_subscribers())
        await ended(self._tasks)
        if self._connection.is_connected:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_LOOK_S):
                    await self._watch.look()  # what was read up to here is known at the next start
        await self._connection.close()

    async def publish(
        self,
        event: Message,
        *,
        model: str,
        event_id: str,
        tenant: str = OWN_TENANT,
        author: str = "",
        again: bool = False,
    ) -> PubAck:
        """Store a fact about `model`. Equal ids are the same event: a repeat adds nothing. Of a type that
        decides, the first of all authors wins, and a later one is a duplicate.

        author: of a decision whose type has several. again: see `publish_encoded`. Raises EventTooLarge,
        UnknownEvent; Unavailable after at least 15 s of trying.
        """
        stream, subject = self._topology.address(type(event), model, event_id, tenant=tenant, author=author)
        return await self.publish_encoded(
            codec.encoded(event), stream, subject, event_id=event_id, again=again
        )

    async def decide(self, decisions: Sequence[Decision]) -> list[Message | None]:
        """Publish up to 1000 decisions: all, or none where one of them is decided otherwise. Returns the
        stored decision for each; None where there is none, because another one was refused.

        Raises EventTooLarge, UnknownEvent; Unavailable.
        """
        return await self._decisions.decide(decisions)

    async def standing(self, decision: Decision) -> Message | None:
        """The stored decision about the same thing, of any author; None before one is stored. Raises
        Unavailable."""
        return await self._decisions.standing(decision)

    async def repeat(self, decision: Decision) -> bool:
        """Copy the stored decision about the same thing, of any author, to the facts again. Returns False
        where there is none. Raises Unavailable."""
        return await self._decisions.repeat(decision)

    async def command(
        self, command: Message, *, pool: str, model: str, event_id: str, tenant: str = OWN_TENANT
    ) -> PubAck:
        """Queue a command for one worker of `pool`. Raises QueueFull at once; else like `publish`."""
        subject = self._topology.command_subject(type(command), pool, model, tenant)
        return await self.publish_encoded(codec.encoded(command), TASKS, subject, event_id=event_id)

    async def publish_encoded(
        self, message: Encoded, stream: str, subject: str, *, event_id: str, again: bool = False
    ) -> PubAck:
        """`publish` or `command` of a message that was encoded, and given its subject, when it was stored.

        again: the readers may not have it. Of decisions, the stored one is copied to the facts once more.
        """
        if stream == DECISIONS:
            return await self._decisions.publish(message, subject, event_id, again=again)
        headers = codec.headers_for(message.message_type, event_id)
        return await self._publisher.publish(subject, message.payload, headers, stream=stream)

    async def publish_together(self, stored: Sequence[Stored], stream: str) -> None:
        """`publish_encoded` of facts or of commands, next to each other in this order; of all or, where one
        is refused or its id is known, of none. It costs a quarter of publishing each.

        Raises AlreadyDecided for a known id, other BusErrors for what is refused; Unavailable.
        """
        await self._publisher.publish_together([one.outgoing() for one in stored], stream=stream)

    def replay(
        self, events: Sequence[type[Message]], *, after_sequence: int, model: str | None = None
    ) -> AsyncIterator[Delivery[Any]]:
        """Every fact of these types after `after_sequence`, in stream order, then each new one; ends when
        the bus stops.

        For a consumer that keeps its own cursor (`Delivery.sequence`). Raises CursorBeyondStream at the
        first step.
        """
        self._watch.reads_facts = True
        reading = replace(self._reading(events, model), on_lost=self.on_facts_lost)
        return self._replayed(reading, after_sequence, is_kept=True)

    async def stored(
        self,
        events: Sequence[type[Message]],
        *,
        after_sequence: int,
        model: str | None = None,
        must_fit: bool = False,
    ) -> list[Delivery[Any]]:
        """Every fact of these types after `after_sequence` that the stream holds now, in stream order: those
        about a model, or all.

        Kept in memory at once, so ask for few. must_fit: raise CursorBeyondStream where the sequence is of
        another stream than this one. Raises Unavailable.
        """
        reading = self._reading(events, model)
        if must_fit:
            await replays.check_cursor(after_sequence, self._connection, self._client_name)
        return await replays.stored(reading, after_sequence, self._connection, self._timings)

    def alarms(self) -> list[str]:
        """What any reader lost, and what is missing or about to be removed; one sentence each."""
        return self._watch.of_all_readers()

    async def unread(self, before: datetime) -> str | None:
        """Why the readers of this service may not have handled all that was stored before a moment: they do
        not read, lag, lost something, or gave a message up; None: they have. Raises Unavailable.
        """
        if (why := self.ready()) is not None:
            return why
        jetstream = self._connection.jetstream()
        return await unread.unread(jetstream, self._topology, self._durables, before, self._given_up)

    async def behind(self, before: datetime) -> str | None:
        """What the readers of this service are yet to handle of what was stored before a moment; None: all is
        handled, or given up. Raises Unavailable."""
        jetstream = self._connection.jetstream()
        return await unread.behind(jetstream, self._topology, self._durables, before)

    def ready(self) -> str | None:
        """`unable`; else what the server lacks; else the alarms, with which it works all the same."""
        if (why := self.unable()) is not None:
            return why
        if missing := self._watch.missing():
            return "; ".join(missing)
        alarms = self._watch.alarms()
        return f"{ALARM}{'; '.join(alarms)}" if alarms else None

    def unable(self) -> str | None:
        """Why this process, perhaps another one not, cannot work: not connected, stopping, a consumer that
        ended, a handler or batch that does not get on.
        """
        if self._stopping.is_set():
            return "stopping"
        if not self._connection.is_connected:
            return "not connected to NATS"
        if self._connection.missing is not None:
            return self._connection.missing
        if stuck := self._deps.in_flight.stuck():
            return f"handlers that do not end: {', '.join(stuck)}"
        if failing := [text for one in self._batches if (text := one.failing())]:
            return f"projections that cannot go on: {'; '.join(failing)}"
        broker = self._connection.broker
        readers = [one for one in broker.subscribers if isinstance(one, DurableSubscriber)]
        if missing := sorted(name for one in readers for name in one.missing):
            return f"durables that do not exist, see upcycle-provision --watch: {', '.join(missing[:_NAMED])}"
        ended = any(task.done() for task in self._tasks)
        ended |= broker.running and not all(one.running for one in broker.subscribers)
        return "a consumer ended" if ended else None

    def _bind(self, spec: ConsumerSpec) -> None:
        if self._started:
            raise BusError(f"subscribe to {spec.durable} before the bus is started")
        self._durables.append(spec)
        self._watch.watch(spec)

    def _add_projection(self, projection: Projection) -> None:
        self._bind(projection.spec)
        decoder = Decoder.of(self._topology, projection.spec)
        consumer = BatchConsumer(
            projection.spec,
            decoder,
            projection.handle,
            self._deps,
            batch_size=projection.batch_size,
            is_ours=projection.is_ours,
        )
        self._batches.append(consumer)
        self._loops.append((projection.spec.durable, lambda: consumer.run(self._connection)))

    def _add_ephemeral(self, ephemeral: Ephemeral) -> None:
        reading = self._reading(ephemeral.handlers.events, ephemeral.model)
        follower = replays.Follower(reading.reader, ephemeral.handlers.handle, self._deps)

        async def loop() -> None:
            if follower.after is None:
                follower.after = self._newest if ephemeral.start == "new" else ephemeral.start
            try:
                await follower.follow(self._replayed(reading, follower.after))
            except CursorBeyondStream as error:  # the stream was made anew: begin as after a restart
                newest = await replays.last_sequence(self._connection.jetstream())
                follower.after = newest if ephemeral.start == "new" else ephemeral.start
                _LOG.error("reader_begins_anew", extra={"reader": reading.reader, "why": str(error)})

        self._loops.append((f"follow-{reading.reader}", loop))

    def _reading(self, events: Sequence[type[Message]], model: str | None) -> replays.Reading:
        if not events:
            raise UnknownEvent("replay needs at least one event type")
        # A model is known by its slug within a tenant; without one, all facts of all tenants are read.
        tenant = None if model is None else OWN_TENANT
        types = {subjects.fact(self._topology.verb_of(event), model, tenant): event for event in events}
        name = replays.name_of(self._client_name)
        again = (subjects.again(EVENTS, name, subject) for subject in types)
        return replays.Reading((*types, *again), Decoder(types), self._client_name)

    async def _replayed(
        self, reading: replays.Reading, after_sequence: int, *, is_kept: bool = False
    ) -> AsyncIterator[Delivery[Any]]:
        """is_kept: the place outlived the process that read up to it."""
        if is_kept and self._watch.begins_again(after_sequence):
            raise CursorBeyondStream(replays.made_anew(after_sequence))
        source = replays.replay(reading, after_sequence, self._connection, self._timings, self._publisher)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                step = asyncio.ensure_future(anext(source))
                try:
                    await asyncio.wait({step, stopping}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not step.done():
                        step.cancel()
                        await asyncio.wait({step}, timeout=_TEAR_DOWN_S)
                # NATS's client may answer a cancellation with an error, when its connection closes beside it.
                if step.cancelled() or (self._stopping.is_set() and step.exception() is not None):
                    return
                yield step.result()
        finally:
            stopping.cancel()
            await source.aclose()

    async def _kept_alive(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run a reading loop again when it ends, so that one bug does not end reading for good."""
        while not self._stopping.is_set():
            try:
                with as_errors():
                    await loop()
            except Exception as error:
                _LOG.exception("reader_crashed", extra={"reader": name, "error": repr(error)})
            await asyncio.sleep(self._timings.first_retry_s)
