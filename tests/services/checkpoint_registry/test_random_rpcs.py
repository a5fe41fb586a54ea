"""Random bytes and messages at every rpc of the registry."""

import grpc
from tests.services.checkpoint_registry.running_registry import Stack
from tests.support.fuzzing import check_every_rpc


async def test_no_random_request_is_answered_with_a_bug(stack: Stack) -> None:
    async with stack.registry() as registry:
        seen = await check_every_rpc(f"127.0.0.1:{stack.settings.grpc_port}")
        assert seen[grpc.StatusCode.INVALID_ARGUMENT]
        assert seen[grpc.StatusCode.OK]
        del registry
