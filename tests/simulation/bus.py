"""An EventBus over the simulated server: publishing, batches and replays are the platform's own code.

Two things are replaced: the connection, and FastStream's dispatch of messages to handlers, which is too
slow for a hundred thousand histories. `SlotReader` follows the rules of event_bus/middlewares.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, cast
from unittest.mock import patch

from google.protobuf.message import Message
from nats.errors import Error as NatsError
from tests.simulation.jetstream import SimulatedJetStream

from event_bus import BusTimings, Carries, ConsumerSpec, EventBus, EventRouter, Topology, codec, dead_letters
from event_bus.attempts import Attempts
from event_bus.deps import ConsumerDeps
from event_bus.errors import MalformedEvent, PoisonMessage
from event_bus.faststream_ext.subscriber import DurableSubscriber, QueueSubscriber
from event_bus.incoming import Decoder, delivery_of, in_work, nack, retry_after_s, retry_delay_s
from event_bus.middlewares.decoding import _CURRENT
from event_bus.pulls import fetched
from event_bus.readers import made_here
from service_kit.errors import as_errors
from upcycle.errors import Unavailable

_LOG = logging.getLogger(__name__)
_PAUSE_S: Final = 0.25
_PULL_S: Final = 20.0
"""Seven times that of production: a pull that finds nothing costs a history time, and finds nothing."""
_PARSED: Final = codec._parsed
Call = Callable[[Any], Awaitable[None]]


class SimulatedConnection:
    """Takes the place of BusConnection: connected again at once after each loss."""

    def __init__(self, jetstream: SimulatedJetStream, topology: Topology, models: Sequence[str]) -> None:
        self._jetstream = jetstream
        self.broker = SimulatedBroker(jetstream, topology, models)
        self.is_connected = True
        self.missing: str | None = None
        self.rights = self.provision = None
        self.open_reader = made_here(self.jetstream)

    def jetstream(self) -> Any:
        return self._jetstream

    def on_reconnect(self, call: Callable[[], None]) -> None:
        self._jetstream.on_reconnect.append(call)

    def epoch(self) -> int:
        return self._jetstream.epoch

    async def open(self) -> None:
        """It is open."""

    async def await_provisioned(self, streams: object, durables: Mapping[ConsumerSpec, object]) -> None:
        """The server was made with them."""

    async def close(self) -> None:
        """A process that stops is a process that crashes here."""


class SimulatedBroker:
    """Takes the place of FastStream's broker: pulls for each durable that has handlers."""

    def __init__(self, jetstream: SimulatedJetStream, topology: Topology, models: Sequence[str]) -> None:
        """models: those whose queues are read."""
        self.jetstream, self.topology, self.models = jetstream, topology, models
        self.holds = False
        """Whether commands are kept without a slot that cannot be begun yet."""
        self.running = False
        self.subscribers: list[DurableSubscriber] = []
        self.context = self
        self.deps: ConsumerDeps | None = None
        self._pulling: list[asyncio.Task[None]] = []

    def set_global(self, name: str, deps: ConsumerDeps) -> None:
        """As FastStream's context: the bus leaves here what its readers need."""
        self.deps = deps

    def add_middleware(self, middleware: object) -> None:
        """See SlotReader."""

    def include_router(self, router: EventRouter) -> None:
        self.subscribers += [one for one in router.subscribers if isinstance(one, DurableSubscriber)]

    async def start(self) -> None:
        self.running = True
        for subscriber in self.subscribers:
            specs, slots = [subscriber.spec], subscriber._slots._value
            if isinstance(subscriber, QueueSubscriber):
                specs = [subscriber.spec.of_model(model) for model in self.models]
                slots = -(-slots // len(specs))
                if subscriber._held is not None and self.holds:
                    self._pulling.append(asyncio.create_task(subscriber._held.run()))
            for reader in [SlotReader(subscriber, spec, self) for spec in specs]:
                for _ in range(slots):
                    self._pulling.append(asyncio.create_task(reader.pull()))

    async def stop_subscribers(self) -> None:
        self.running = False


class SlotReader:
    """Gives the messages of one durable to its handlers, one at a time per slot."""

    def __init__(self, subscriber: DurableSubscriber, spec: ConsumerSpec, broker: SimulatedBroker) -> None:
        assert broker.deps is not None
        self._spec = spec
        self._deps = broker.deps
        self._jetstream: Any = broker.jetstream
        self._decoder = Decoder.of(broker.topology, spec)
        self._calls = dict(_calls_of(subscriber))
        is_queue = isinstance(subscriber, QueueSubscriber)
        self._queue = cast(QueueSubscriber, subscriber) if is_queue and broker.holds else None
        self._held: set[asyncio.Task[None]] = set()

    async def pull(self) -> None:
        """Until the process ends."""
        subscription = await self._jetstream.pull_subscribe_bind(self._spec.durable, stream=self._spec.stream)
        while True:
            try:
                raws = await fetched(subscription, 1, self._deps.timings.pull_s)
            except NatsError:
                await asyncio.sleep(_PAUSE_S)
                continue
            for raw in raws:
                if not await self._is_kept(raw):
                    await self._answer(raw)

    async def _answer(self, raw: Any) -> None:
        """Every message gets exactly one answer."""
        try:
            notes, gives_up = self._deps.notes, self._spec.max_deliver > 0
            before = await (notes.begun(raw) if gives_up else notes.read(raw))
        except Unavailable:
            await nack(raw, self._spec.durable, 2.0)
            return
        except PoisonMessage as error:
            await self._dead_letter(raw, str(error))
            return
        try:
            await self._handle(raw, before)
        except (PoisonMessage, MalformedEvent) as error:
            await self._dead_letter(raw, str(error))
        except Unavailable as error:
            await self._deps.notes.write(raw, before.then(raw.metadata.num_delivered))
            await nack(raw, self._spec.durable, retry_after_s(error, self._deps.timings))
        except Exception as error:
            attempts = before.then(raw.metadata.num_delivered, failed=True)
            _LOG.error("handler_failed", exc_info=error, extra={"consumer": self._spec.durable})
            if 0 < self._spec.max_deliver <= attempts.failures:
                await self._dead_letter(raw, f"failed {attempts.failures} times, last: {error!r}")
                return
            await self._deps.notes.write(raw, attempts)
            await nack(raw, self._spec.durable, retry_delay_s(attempts.failures, self._deps.timings))
        else:
            await raw.ack()

    async def _is_kept(self, raw: Any) -> bool:
        """Whether a command cannot be begun yet: then it is kept, and goes back once it can."""
        need = None if self._queue is None else await self._queue._unmet(raw)
        if need is not None:
            keeping = asyncio.create_task(self._keep(raw, need))
            self._held.add(keeping)
            keeping.add_done_callback(self._held.discard)
        return need is not None

    async def _keep(self, raw: Any, need: Hashable) -> None:
        """See QueueSubscriber._process."""
        assert self._queue is not None
        assert self._queue._held is not None
        await self._queue._held.keep(raw, need, self._deps.notes)

    async def _handle(self, raw: Any, before: Attempts) -> None:
        event = self._decoder.message(raw.subject, raw.data, raw.headers)
        async with in_work([raw], self._spec):
            token = _CURRENT.set(delivery_of(raw, event, before.failures))
            try:
                with as_errors():
                    await self._calls[type(event)](event)
            finally:
                _CURRENT.reset(token)

    async def _dead_letter(self, raw: Any, reason: str) -> None:
        if await dead_letters.stored(self._deps.publisher, raw, consumer=self._spec.durable, reason=reason):
            await raw.term()
        else:
            await nack(raw, self._spec.durable, 2.0)


def _calls_of(subscriber: DurableSubscriber) -> Iterable[tuple[type, Call]]:
    for item in subscriber.calls:
        function: Any = item.handler._original_call
        types = [item.filter.message_type] if isinstance(item.filter, Carries) else subscriber.spec.events
        for one in types:
            yield one, function


class UnwatchedStreams:
    """Takes the place of StreamWatch: streams lose nothing here, and looking at them costs."""

    def __init__(self, connection: object, streams: object, *, keeps_its_place: str) -> None:
        self.reads_facts = False

    def watch(self, spec: ConsumerSpec) -> None: ...

    async def begin(self) -> None: ...

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def look(self) -> None: ...

    def missing(self) -> list[str]:
        return []

    alarms = of_all_readers = missing

    def begins_again(self, after_sequence: int) -> bool:
        return False


class SimulatedBus(EventBus):
    """One per life of a process; only its connection is another."""

    def __init__(
        self,
        jetstream: SimulatedJetStream,
        *,
        client_name: str,
        topology: Topology,
        models: Sequence[str],
        holds: bool,
    ) -> None:
        """models: those whose queues are read. holds: see SimulatedBroker."""
        connection = SimulatedConnection(jetstream, topology, models)
        connection.broker.holds = holds
        settings: Any = None
        with (
            patch("event_bus.bus.BusConnection", lambda *_: connection),
            patch("event_bus.bus.StreamWatch", UnwatchedStreams),
        ):
            super().__init__(
                settings, client_name=client_name, topology=topology, timings=BusTimings(pull_s=_PULL_S)
            )


class DecodedOnce:
    """Takes the place of the codec's parser: several services read each message, and reading JSON is slow."""

    def __init__(self) -> None:
        self._messages: dict[tuple[type[Message], bytes], Message] = {}

    def __call__(self, message_type: type[Message], payload: bytes) -> Message:
        """See codec._parsed."""
        key = message_type, payload
        if key not in self._messages:
            self._messages[key] = _PARSED(message_type, payload)
        copy = message_type()
        copy.CopyFrom(self._messages[key])
        return copy
