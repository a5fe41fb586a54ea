"""An engine that answers garbage: it holds a lease like any other, and samplers and gateways come to it."""

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Final

from grpc.aio import AioRpcError

from service_kit.ports import LOOPBACK
from upcycle.api.registry.v1.registry_pb2 import EngineLease
from upcycle.api.registry.v1.service_pb2 import ListEnginesRequest, RenewEngineLeaseRequest
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub
from upcycle.rpc import connect

ENGINE_ID: Final = "chaos-garbage"
_RENEW_S: Final = 1.0
_TTL_S: Final = 3.0
_HEAD_BYTES: Final = 65_536

_NO_CHOICES: Final = (
    b"",
    b"[]",
    b"null",
    b"{}",
    b'{"choices": {}}',
    b"<html>502 Bad Gateway</html>",
    b'{"choices": [{"token_ids": [1, 2',
    bytes(range(256)),
    b"[" * 100_000,
)


def answers(version: int) -> list[bytes]:
    """Bodies of 200 OK. version: what a real engine would stamp on its tokens."""
    good = {
        "index": 0,
        "token_ids": [5, 6],
        "logprobs": {"content": [{"logprob": -0.1}, {"logprob": -0.2}]},
        "weight_versions": [{"version": str(version), "start": 0, "end": 2}],
        "finish_reason": "stop",
    }
    never_published = {"version": str(version + 1_000_000), "start": 0, "end": 2}
    wrong: list[object] = [
        {"index": 0},
        {"finish_reason": "stop"},
        None,
        {**good, "token_ids": ["five", "six"]},
        {**good, "token_ids": [None, [6]]},
        {**good, "token_ids": [-1, 6]},
        {**good, "token_ids": [5, 10**12]},
        {**good, "token_ids": [5.5, 1e300]},
        {**good, "token_ids": {"0": 5, "1": 6}},
        {**good, "logprobs": {"content": [{"logprob": float("nan")}, {"logprob": -0.2}]}},
        {**good, "logprobs": {"content": [{"logprob": 10**400}, {"logprob": -0.2}]}},
        {**good, "logprobs": [-0.1, -0.2]},
        {**good, "weight_versions": [{"version": str(version), "start": 0, "end": float("inf")}]},
        {**good, "weight_versions": [{"version": str(version), "start": 1, "end": 2}]},
        {**good, "weight_versions": 7},
        {**good, "weight_versions": [{"version": "default", "start": 0, "end": 2}]},
        {**good, "finish_reason": "because"},
        {**good, "finish_reason": ["stop"]},
        {**good, "weight_versions": [never_published]},
    ]
    return [
        *_NO_CHOICES,
        *(json.dumps({"request_id": "r", "choices": [choice]}).encode() for choice in wrong),
    ]


@dataclass(slots=True)
class GarbageEngine:
    """registry: its address. key: of a service. draw: which garbage comes in which order."""

    registry: str
    key: str
    model: str
    draw: float
    _server: asyncio.Server | None = None
    _renewing: asyncio.Task[None] | None = None
    _rng: random.Random = field(init=False)
    _bodies: list[bytes] = field(default_factory=list)
    answered: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.draw)

    async def inject(self) -> None:
        """Listen, and hold a lease that says what a good engine of channel latest says."""
        self._server = await asyncio.start_server(self._answer, LOOPBACK, 0)
        port = self._server.sockets[0].getsockname()[1]
        self._bodies = answers(0)
        self._renewing = asyncio.create_task(self._renew(f"http://{LOOPBACK}:{port}"))

    async def heal(self) -> None:
        """Gone, as a process that was killed; the lease lapses."""
        if self._renewing is not None:
            self._renewing.cancel()
        if self._server is not None:
            self._server.close()

    async def _renew(self, base_url: str) -> None:
        async with connect(self.registry, api_key=self.key) as channel:
            stub = RegistryServiceStub(channel)
            while True:
                try:
                    found = await stub.ListEngines(ListEnginesRequest(model=self.model), timeout=_TTL_S)
                    if (lease := self._copy(list(found.engines), base_url)) is not None:
                        request = RenewEngineLeaseRequest(lease=lease, ttl_s=_TTL_S)
                        await stub.RenewEngineLease(request, timeout=_TTL_S)
                except AioRpcError:
                    pass  # the registry is busy: the lease lapses, and comes again
                await asyncio.sleep(_RENEW_S)

    def _copy(self, engines: list[EngineLease], base_url: str) -> EngineLease | None:
        """The newest lease of channel latest, with this address."""
        real = [one for one in engines if one.engine_id != ENGINE_ID]
        if not real:
            return None
        newest = max(real, key=lambda one: (-one.channel, one.version))
        self._bodies = answers(newest.version)
        copy = EngineLease()
        copy.CopyFrom(newest)
        copy.engine_id, copy.base_url = ENGINE_ID, base_url
        del copy.held_versions[:]
        return copy

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(_HEAD_BYTES):
                body = self._rng.choice(self._bodies)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
                self.answered += 1
        except OSError:
            return  # the client had enough
        finally:
            writer.close()
