"""Batches in stream order, for projections.

First deliveries reach the handler in stream order as long as one process reads the durable (`is_ours`: of
several, one at a time): a batch that failed is nacked whole and nothing newer is fetched before it is due
again; if a part of it does not come back then, because its nack was lost, what came waits for that part.
After a start or a reconnect the reader first lets the deliveries that an earlier connection left unanswered
run out, because the server sends those first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from event_bus import dead_letters, metrics, tracing
from event_bus.connection import BusConnection
from event_bus.delivery import Delivery
from event_bus.deps import ConsumerDeps
from event_bus.errors import MalformedEvent, NewerEvent, PoisonMessage
from event_bus.incoming import Decoder, in_work, nack, retry_after_s, retry_delay_s
from event_bus.pulls import fetched, unsubscribe
from event_bus.topology import ConsumerSpec
from service_kit.clock import utc_now
from upcycle.errors import Unavailable

_LOG = logging.getLogger(__name__)
_MARGIN_S: Final = 0.25
"""How long the server may take to make every message of a nacked batch due again."""
_PAUSE_S: Final = 0.5
_FEW: Final = 16
"""After a smaller batch more messages gather before the next: most of what a batch costs is its transaction.
A message that comes after silence waits for nothing."""
_MAX_WORDS: Final = 300
"""Characters of an error in a reason of `failing`."""
FAILURES_UNREADY: Final = 5
"""Failures in a row after which the bus is not ready."""

BatchHandler = Callable[[Sequence[Delivery[Any]]], Awaitable[None]]
Pair = tuple[Msg, Delivery[Any]]


class BatchConsumer:
    """Reads one durable until it is cancelled."""

    def __init__(
        self,
        spec: ConsumerSpec,
        decoder: Decoder,
        handler: BatchHandler,
        deps: ConsumerDeps,
        *,
        batch_size: int,
        is_ours: Callable[[], bool] | None = None,
    ) -> None:
        """is_ours: whether this process is the one that reads now; asked before each fetch. None: several
        processes may read at once, each a part."""
        self._spec = spec
        self._is_ours = is_ours
        self._decoder = decoder
        self._handler = handler
        self._deps = deps
        self._batch_size = batch_size
        self._failures = 0
        self._failing_since = ""
        self._last = ""
        self._epoch = -1
        """Of the connection on which it read last; -1: it has to let leftovers run out first."""
        self._owed: set[int] = set()
        """Stream sequences of the batch that failed last: nothing newer is handled before them."""
        self._subscription: JetStreamContext.PullSubscription | None = None

    def failing(self) -> str | None:
        """What is wrong, once the same batch has failed several times in a row: nothing newer is read."""
        if self._failures < FAILURES_UNREADY:
            return None
        since = f"{self._failures} times in a row since {self._failing_since}"
        return f"{self._spec.durable} failed {since}: {self._last}"

    async def run(self, connection: BusConnection) -> None:
        """Fetch and handle until cancelled; a batch that is in work then is nacked."""
        self._epoch, self._subscription = -1, None
        try:
            while True:
                raws = await self._next(connection)
                pause_s = await self._tracked(raws) if raws else 0.0
                if pause_s > 0:
                    await asyncio.sleep(pause_s + _MARGIN_S)
                elif 0 < len(raws) < min(_FEW, self._batch_size):
                    await asyncio.sleep(self._deps.timings.gather_s)
        finally:
            if self._subscription is not None:
                await unsubscribe(self._subscription)

    async def _next(self, connection: BusConnection) -> list[Msg]:
        """The next messages; none while another process reads, or none came."""
        if self._is_ours is not None and not self._is_ours():
            self._epoch = -1
            self._owed.clear()
            await asyncio.sleep(_PAUSE_S)
            return []
        try:
            if self._epoch != connection.epoch():
                self._epoch = connection.epoch()
                await self._let_leftovers_run_out(connection)
            if self._subscription is None:
                self._subscription = await connection.jetstream().pull_subscribe_bind(
                    self._spec.durable, stream=self._spec.stream
                )
            return await fetched(self._subscription, self._batch_size, self._deps.timings.pull_s)
        except NatsError as error:
            _LOG.warning("fetch_failed", extra={"consumer": self._spec.durable, "error": repr(error)})
            await asyncio.sleep(_PAUSE_S)
            return []

    async def _let_leftovers_run_out(self, connection: BusConnection) -> None:
        spec = self._spec
        info = await connection.jetstream().consumer_info(spec.stream, spec.durable)
        if count := info.num_ack_pending:
            extra = {"consumer": spec.durable, "count": count, "wait_s": spec.ack_wait_s}
            _LOG.info("waiting_for_leftovers", extra=extra)
            await asyncio.sleep(spec.ack_wait_s + _MARGIN_S)

    async def _tracked(self, raws: list[Msg]) -> float:
        """Handle a batch as one piece of work that a drain can wait for; returns the pause that follows."""

        async def work() -> float:
            try:
                return await self._handle(sorted(raws, key=lambda raw: raw.metadata.sequence.stream))
            except asyncio.CancelledError:
                await self._nack(raws, 0.0)
                raise

        return await self._deps.in_flight.run(work(), f"{self._spec.durable}/batch")

    async def _handle(self, raws: Sequence[Msg]) -> float:
        if self._passes_over(raws):
            return await self._nack(raws, self._spec.ack_wait_s)
        pairs: list[Pair] = []
        for index, raw in enumerate(raws):
            try:
                pairs.append((raw, self._decoder.delivery(raw)))
            except MalformedEvent as error:
                if not await self._dead_letter(raw, str(error)):
                    return await self._failed(raws, error)  # nothing may pass it
            except NewerEvent as error:  # what came before it is folded; nothing may pass it
                pause_s = await self._run(pairs) if pairs else 0.0
                return pause_s + await self._failed(raws[index:], error)
        return await self._run(pairs) if pairs else 0.0

    def _passes_over(self, raws: Sequence[Msg]) -> bool:
        """Whether a part of the batch that failed is not among these, though newer ones are. It is waited for
        once: the server sends it again after `ack_wait`, unless it is gone."""
        came, owed = set(_sequences(raws)), self._owed
        self._owed = set()
        missing = owed - came
        if self._is_ours is None or not missing or min(missing) > max(came):
            return False
        extra = {"consumer": self._spec.durable, "missing": sorted(missing), "wait_s": self._spec.ack_wait_s}
        _LOG.info("waiting_for_leftovers", extra=extra)
        return True

    async def _run(self, pairs: Sequence[Pair]) -> float:
        raws = [raw for raw, _ in pairs]
        durable = self._spec.durable
        try:
            with (
                metrics.handling(durable, len(pairs)),
                tracing.processing_batch(durable, [raw.headers or {} for raw in raws]),
            ):
                async with in_work(raws, self._spec):
                    await self._handler([delivery for _, delivery in pairs])
        except Unavailable as unavailable:
            return await self._again(raws, retry_after_s(unavailable, self._deps.timings))
        except PoisonMessage as poison:
            return await self._isolate(pairs, poison)
        except Exception as error:
            ends = [raw.metadata.sequence.stream for raw in (raws[0], raws[-1])]
            _LOG.error("batch_failed", exc_info=error, extra={"consumer": durable, "first_and_last": ends})
            return await self._failed(raws, error)
        self._failures = 0
        for raw in raws:
            await self._ack(raw)
        return 0.0

    async def _isolate(self, pairs: Sequence[Pair], poison: PoisonMessage) -> float:
        """One message of the batch is poison: the handler gets each alone, in order, to say which."""
        if len(pairs) == 1:
            raw = pairs[0][0]
            return 0.0 if await self._dead_letter(raw, poison.reason) else await self._failed([raw], poison)
        for index in range(len(pairs)):
            if pause_s := await self._run(pairs[index : index + 1]):
                return await self._again([raw for raw, _ in pairs[index + 1 :]], pause_s)
        return 0.0

    async def _again(self, raws: Sequence[Msg], delay_s: float) -> float:
        self._owed.update(_sequences(raws))
        return await self._nack(raws, delay_s)

    async def _failed(self, raws: Sequence[Msg], error: Exception) -> float:
        self._failures += 1
        self._last = " ".join(str(error).split())[:_MAX_WORDS]
        if self._failures == 1:
            self._failing_since = f"{utc_now():%Y-%m-%d %H:%M:%S} UTC"
        return await self._again(raws, retry_delay_s(self._failures, self._deps.timings))

    async def _nack(self, raws: Sequence[Msg], delay_s: float) -> float:
        for raw in raws:
            await nack(raw, self._spec.durable, delay_s)
        return delay_s

    async def _ack(self, raw: Msg) -> None:
        try:
            await raw.ack()
        except NatsError as error:  # then it is redelivered, and projections are idempotent
            _LOG.warning("ack_not_sent", extra={"consumer": self._spec.durable, "error": repr(error)})

    async def _dead_letter(self, raw: Msg, reason: str) -> bool:
        durable = self._spec.durable
        if not await dead_letters.stored(self._deps.publisher, raw, consumer=durable, reason=reason):
            return False
        await raw.term()
        return True


def _sequences(raws: Sequence[Msg]) -> list[int]:
    return [raw.metadata.sequence.stream for raw in raws]
