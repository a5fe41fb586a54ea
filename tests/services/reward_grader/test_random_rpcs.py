"""Random bytes and messages at every rpc of the grader."""

import grpc
from tests.services.reward_grader.conftest import Testbed
from tests.support.fuzzing import check_every_rpc

from service_kit.ports import free_ports


async def test_no_random_request_is_answered_with_a_bug(bed: Testbed) -> None:
    (port,) = free_ports(1)
    await bed.grader(grpc_port=port)
    seen = await check_every_rpc(f"127.0.0.1:{port}")
    assert seen[grpc.StatusCode.INVALID_ARGUMENT]
