"""Random bytes and messages at every rpc of the trajectory store."""

import grpc
from tests.services.trajectory_store.running_store import Store
from tests.support.fuzzing import check_every_rpc


async def test_no_random_request_is_answered_with_a_bug(store: Store) -> None:
    seen = await check_every_rpc(store.address)
    assert seen[grpc.StatusCode.INVALID_ARGUMENT]
