"""The limit of a tool call is sent where the fleet said that it takes one: a fleet of 0.3.0 refuses it."""

from __future__ import annotations

from typing import Any

import pytest

from environment_client import EnvironmentClient
from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from upcycle.api.environment.v1 import service_pb2 as pb
from upcycle.api.environment.v1.service_pb2_grpc import (
    EnvironmentServiceServicer,
    add_EnvironmentServiceServicer_to_server,
)
from upcycle.api.trajectory.v1.trajectory_pb2 import ToolCall


class Fleet(EnvironmentServiceServicer):
    """Opens, and notes the calls."""

    def __init__(self, opened: pb.OpenResponse) -> None:
        self.opened = opened
        self.calls: list[pb.CallToolRequest] = []

    async def Open(self, request: pb.OpenRequest, context: Any) -> pb.OpenResponse:
        return self.opened

    async def CallTool(self, request: pb.CallToolRequest, context: Any) -> pb.CallToolResponse:
        self.calls.append(request)
        return pb.CallToolResponse(content="done")


@pytest.mark.parametrize(
    ("opened", "is_sent"), [(pb.OpenResponse(), False), (pb.OpenResponse(limits_calls=True), True)]
)
async def test_the_limit_goes_to_a_fleet_that_takes_it(opened: pb.OpenResponse, is_sent: bool) -> None:
    fleet = Fleet(opened)  # type: ignore[abstract]
    server = GrpcServer("127.0.0.1", 0, OPEN, grace_s=0.1)
    server.add(add_EnvironmentServiceServicer_to_server, fleet, {})
    await server.start()
    client = EnvironmentClient(server.address)
    try:
        environment = await client.open_episode("episode-1")
        await client.call_tool(environment.lease, ToolCall(call_id="c", name="look"), limit_s=3.0)
        assert [call.HasField("limit_s") for call in fleet.calls] == [is_sent]
    finally:
        await client.stop()
        await server.stop()
