"""Opt-in capture of production traffic: the exchange to the object store, the fact to the bus."""

import asyncio
import hashlib
import logging
from collections import deque

import orjson
import zstandard

from blob_store import BlobError, BlobRef, BlobStore
from blob_store import ref as blob_ref
from event_bus import BusError, EventBus
from identities import events, objects
from model_gateway.domain.records import CapturedExchange
from model_gateway.telemetry import CAPTURE_DROPPED
from service_kit.loops import pause
from upcycle.api.registry.v1.events_pb2 import GatewaySampled
from upcycle.errors import Unavailable as StoreAway
from upcycle.moments import timestamp

log = logging.getLogger(__name__)

_MAX_WAITING = 1000
_HASH_RANGE = 1 << 32
_LONGEST_WAIT_S = 60.0


class BlobCapture:
    """Keeps a share of production traffic, where the deployment opted in; losing some of it is no failure."""

    def __init__(self, store: BlobStore, bus: EventBus, *, fraction: float) -> None:
        """`fraction` of requests, chosen by a hash of their id, so that replicas agree; 0 is off."""
        self._store = store
        self._bus = bus
        self._threshold = int(fraction * _HASH_RANGE)
        self._waiting: deque[CapturedExchange] = deque()
        self._arrived = asyncio.Event()

    def wants(self, request_id: str) -> bool:
        """Whether this request is one to keep."""
        if self._threshold == 0:
            return False
        return int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:4], "big") < self._threshold

    def add(self, sample: CapturedExchange) -> None:
        """Never blocks, never raises; what a full buffer drops is counted."""
        if len(self._waiting) >= _MAX_WAITING:
            CAPTURE_DROPPED.labels("buffer_full").inc()
            return
        self._waiting.append(sample)
        self._arrived.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Store one exchange after the other until stopped; then those that wait."""
        while await pause(stop, _LONGEST_WAIT_S, self._arrived):
            await self._keep_all()
        await self._keep_all()

    async def _keep_all(self) -> None:
        while self._waiting:
            sample = self._waiting.popleft()
            try:
                await self._keep(sample)
            except (BlobError, StoreAway, BusError) as error:
                CAPTURE_DROPPED.labels(type(error).__name__).inc()
                log.warning("capture_lost", extra={"request_id": sample.request_id, "why": str(error)})

    async def _keep(self, sample: CapturedExchange) -> None:
        day = sample.sampled_at.date().isoformat()
        key = objects.capture(sample.model, day, sample.request_id)
        ref = await self._store.put(key, _body(sample))
        event = _event(sample, ref)
        await self._bus.publish(event, model=sample.model, event_id=events.gateway_sampled(sample.request_id))


def _body(sample: CapturedExchange) -> bytes:
    body = {
        "request_id": sample.request_id,
        "model": sample.model,
        "version": sample.version,
        "digest": sample.digest,
        "request": orjson.Fragment(sample.request),
        "response": sample.response.decode(errors="replace"),
    }
    return zstandard.compress(orjson.dumps(body))


def _event(sample: CapturedExchange, ref: BlobRef) -> GatewaySampled:
    return GatewaySampled(
        request_id=sample.request_id,
        model=sample.model,
        version=sample.version,
        digest=sample.digest,
        body=blob_ref.to_wire(ref),
        sampled_at=timestamp(sample.sampled_at),
    )
