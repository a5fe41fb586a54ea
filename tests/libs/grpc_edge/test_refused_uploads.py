"""Who still uploads when the server refuses learns why."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import SecretStr

from grpc_edge import GrpcServer
from grpc_edge.access import Access
from grpc_edge.status import MalformedRequest
from service_kit.groups import AccessSettings
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.registry.v1 import service_pb2_grpc as rpc
from upcycle.rpc import RemoteDenied, RemoteRefused, connect, remote_errors

KEY = "operator-key-0123456789"
TIMES = 60
"""gRPC's client lost the reason of one refusal in eight where the server did not read to the end."""


class Registry(rpc.RegistryServiceServicer):
    """Refuses an upload after its first message."""

    async def ImportModel(self, request_iterator: Any, context: Any) -> pb.ImportModelResponse:
        async for _ in request_iterator:
            raise MalformedRequest("this model is not taken")
        return pb.ImportModelResponse()


@pytest.fixture
async def address() -> AsyncIterator[str]:
    access = Access.of(AccessSettings(open=False, operator_key=SecretStr(KEY)))
    server = GrpcServer("127.0.0.1", 0, access, grace_s=0.1)
    server.add(rpc.add_RegistryServiceServicer_to_server, Registry())  # type: ignore[abstract]
    await server.start()
    yield server.address
    await server.stop()


async def upload(stub: "rpc.RegistryServiceAsyncStub") -> None:
    async def parts() -> AsyncIterator[pb.ImportModelRequest]:
        for _ in range(200):
            yield pb.ImportModelRequest(chunk=pb.FileChunk(name="weights", data=b"x" * 10))

    with remote_errors("import"):
        await stub.ImportModel(parts())


@pytest.mark.parametrize(
    ("key", "kind", "says"),
    [(KEY, RemoteRefused, "this model is not taken"), ("wrong", RemoteDenied, "UPCYCLE_OPERATOR_KEY")],
)
async def test_an_upload_that_is_refused_at_its_start_says_why(
    address: str, key: str, kind: type[Exception], says: str
) -> None:
    async with connect(address, api_key=key) as channel:
        stub: rpc.RegistryServiceAsyncStub = rpc.RegistryServiceStub(channel)
        for _ in range(TIMES):
            with pytest.raises(kind, match=says):
                await upload(stub)
