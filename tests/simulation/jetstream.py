"""What event_bus calls of nats-py's JetStreamContext, over the server in memory.

One suite, `test_jetstream.py`, drives this and a real nats-server.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Final, TypeVar

from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import APIError, NotFoundError
from tests.simulation.nats_server import Message, SimulatedConsumer, SimulatedServer, StoredMessage
from tests.simulation.network import SimulatedNetwork
from tests.simulation.virtual_time import START, running_process

T = TypeVar("T")
SERVER: Final = "nats"
_TOGETHER_S: Final = 0.3
_ANSWER_S: Final = 3.0
"""A connection that breaks is noticed after so long."""
_BATCH: Final = "Nats-Batch-Id"


class SimulatedMsg:
    """A delivered message; an answer is sent and not waited for."""

    def __init__(
        self,
        network: SimulatedNetwork,
        consumer: SimulatedConsumer,
        message: StoredMessage,
        num_delivered: int,
        delivery: int,
    ) -> None:
        self.subject, self.data, self.headers = message.subject, message.data, message.headers
        self.metadata = SimpleNamespace(
            sequence=SimpleNamespace(stream=message.sequence, consumer=delivery),
            num_delivered=num_delivered,
            stream=consumer.stream.spec.name,
            consumer=consumer.name,
            timestamp=message.at,
        )
        self._ackd = False
        self._network = network
        self._consumer = consumer
        self._sequence = message.sequence

    async def ack(self) -> None:
        self._ackd = True
        self._network.send(SERVER, lambda: self._consumer.done(self._sequence))

    async def term(self) -> None:
        await self.ack()

    async def nak(self, delay: float | None = None) -> None:
        self._ackd = True
        self._network.send(SERVER, lambda: self._consumer.again(self._sequence, delay or 0.0))

    async def in_progress(self) -> None:
        wait_s = self._consumer._ack_wait_s or 0.0
        self._network.send(SERVER, lambda: self._consumer.again(self._sequence, wait_s))


class _Subscription:
    """A pull subscription."""

    def __init__(self, jetstream: "SimulatedJetStream", consumer: SimulatedConsumer) -> None:
        self._jetstream = jetstream
        self._network = jetstream.network
        self._consumer = consumer
        self._loop = jetstream.server.loop

    async def fetch(self, batch: int = 1, timeout: float = 5.0) -> list[SimulatedMsg]:
        """Raises NatsTimeout where none came. What is lost on the way comes again after the ack wait."""
        taken = await self._network.conversation(
            SERVER, self._next(batch, timeout), timeout_s=min(timeout, _ANSWER_S), lost=self._jetstream.lost
        )
        return [SimulatedMsg(self._network, self._consumer, *one) for one in taken]

    async def _next(self, batch: int, timeout: float) -> list[tuple[StoredMessage, int, int]]:
        """Who asks for many gets them together more often than one by one: transactions cost most here."""
        until = self._loop.time() + timeout
        if batch > 1 and not self._consumer.has_more():
            await self._more(until)
            await asyncio.sleep(self._loop.pause_s(_TOGETHER_S))
        while not (taken := self._consumer.take(batch)):
            await self._more(until)
        return taken

    async def _more(self, until: float) -> None:
        """Wait for a message. Raises NatsTimeout."""
        more: asyncio.Future[None] = self._loop.create_future()
        self._consumer.waiting[more] = running_process()
        timer = self._loop.call_at(until, _expire, more)
        try:
            await more
        finally:
            self._consumer.waiting.pop(more, None)
            timer.cancel()

    async def unsubscribe(self) -> None:
        """Nothing is kept for it."""


def _expire(more: asyncio.Future[None]) -> None:
    if not more.done():
        more.set_exception(NatsTimeout())


class SimulatedClient:
    """What the publisher calls of nats-py's client itself: batches, which its JetStreamContext lacks. What
    is published waits for the request that commits it: on one connection, messages keep their order."""

    def __init__(self, jetstream: "SimulatedJetStream") -> None:
        self._jetstream = jetstream
        self._batches: dict[str, list[Message]] = {}

    async def publish(self, subject: str, payload: bytes, *, headers: Mapping[str, str]) -> None:
        """One message of a batch that is not the last one."""
        self._batches.setdefault(headers[_BATCH], []).append((subject, payload, headers))

    async def request(
        self, subject: str, payload: bytes, *, timeout: float, headers: Mapping[str, str]
    ) -> SimpleNamespace:
        """The last message of a batch; the answer says that all are stored, or why none is."""
        batch = [*self._batches.pop(headers[_BATCH], ()), (subject, payload, headers)]
        stream = headers["Nats-Expected-Stream"]

        def store() -> SimpleNamespace:
            try:
                ack = self._jetstream.server.store_together(stream, batch)
            except APIError as error:
                said = {"code": error.code, "err_code": error.err_code, "description": error.description}
                return SimpleNamespace(data=json.dumps({"error": said}).encode())
            return SimpleNamespace(data=json.dumps({"stream": ack.stream, "seq": ack.seq}).encode())

        return await self._jetstream.network.request(
            SERVER, store, timeout_s=timeout, lost=self._jetstream.lost
        )


class SimulatedJetStream:
    """What event_bus calls of nats-py's JetStreamContext."""

    def __init__(self, server: SimulatedServer, network: SimulatedNetwork) -> None:
        self.server = server
        self.network = network
        self.epoch = 0
        self.on_reconnect: list[Callable[[], None]] = []
        self._nc = SimulatedClient(self)

    def lost(self) -> NatsTimeout:
        """TCP loses no message in the middle: the connection broke, and is made again."""
        self.epoch += 1
        for call in self.on_reconnect:
            call()
        return NatsTimeout()

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout: float = 5.0,
        stream: str,
        headers: Mapping[str, str] | None = None,
    ) -> SimpleNamespace:
        """Raises NatsTimeout where the server did not answer, which may have stored it."""
        return await self.network.request(
            SERVER,
            lambda: self.server.store(stream, subject, payload, headers or {}),
            timeout_s=timeout,
            lost=self.lost,
        )

    async def pull_subscribe_bind(self, durable: str, stream: str) -> _Subscription:
        """Of a consumer that exists."""
        return _Subscription(self, self._consumer(stream, durable))

    async def add_consumer(self, stream: str, config: ConsumerConfig) -> SimpleNamespace:
        """One without acknowledgements, from a sequence on."""

        def add() -> SimpleNamespace:
            ack_wait_s = None if config.ack_policy is AckPolicy.NONE else config.ack_wait or 30.0
            consumer = self.server.add(
                stream,
                config.durable_name or config.name or self.server.new_name(),
                config.filter_subjects or [config.filter_subject or ">"],
                after=(config.opt_start_seq or 1) - 1,
                ack_wait_s=ack_wait_s,
            )
            return SimpleNamespace(name=consumer.name, num_pending=consumer.num_unread())

        return await self._request(add)

    async def delete_consumer(self, stream: str, consumer: str) -> bool:
        """Gone or not, it is gone."""
        return await self._request(
            lambda: self.server.streams[stream].consumers.pop(consumer, None) is not None
        )

    async def stream_info(self, name: str) -> SimpleNamespace:
        """First and last sequence."""

        def read() -> SimpleNamespace:
            kept = self.server.streams[name]
            state = SimpleNamespace(
                first_seq=kept.first_sequence, last_seq=kept.last_sequence, messages=len(kept.messages)
            )
            return SimpleNamespace(state=state, created=START)

        return await self._request(read)

    async def consumer_info(self, stream: str, consumer: str) -> SimpleNamespace:
        """How far it is."""

        def read() -> SimpleNamespace:
            found = self._consumer(stream, consumer)
            return SimpleNamespace(
                num_pending=found.num_unread(),
                num_ack_pending=len(found.pending),
                num_waiting=len(found.waiting),
                config=ConsumerConfig(filter_subjects=list(found.filters)),
            )

        return await self._request(read)

    async def get_last_msg(self, stream: str, subject: str, **_: object) -> StoredMessage:
        """The newest message on a subject. Raises NotFoundError."""

        def read() -> StoredMessage:
            kept = self.server.streams[stream]
            sequence = kept.last_on(subject)
            if not sequence:
                raise NotFoundError(code=404, err_code=10037, description="no message found")
            return kept.messages[sequence]

        return await self._request(read)

    async def get_msg(self, stream: str, *, seq: int, subject: str, next: bool) -> StoredMessage:
        """The first message on a subject, from a sequence on. Raises NotFoundError."""
        assert next

        def read() -> StoredMessage:
            kept = self.server.streams[stream]
            found = [at for at in kept.by_subject.get(subject, ()) if at >= seq]
            if not found:
                raise NotFoundError(code=404, err_code=10037, description="no message found")
            return kept.messages[min(found)]

        return await self._request(read)

    def _consumer(self, stream: str, name: str) -> SimulatedConsumer:
        found = self.server.streams[stream].consumers.get(name)
        if found is None:
            raise NotFoundError(code=404, err_code=10014, description="consumer not found")
        return found

    async def _request(self, serve: Callable[[], T]) -> T:
        return await self.network.request(SERVER, serve, timeout_s=5.0, lost=self.lost)
