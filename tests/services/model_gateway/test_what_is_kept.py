"""What a gateway remembers of versions and engines is bounded: both come and go for as long as it runs."""

from typing import Any, cast

from tests.services.model_gateway.test_routing import engine
from tests.support.keeping import num_kept

from grpc_edge import Peer
from model_gateway.adapters.directory import RegistryDirectory
from model_gateway.usecases.pick import PickEngine
from upcycle.api.registry.v1.events_pb2 import CheckpointPromoted

KEPT_DIGESTS = 1024


async def test_digests_of_old_versions_are_forgotten() -> None:
    peer = Peer("registry", "127.0.0.1:1")
    directory = RegistryDirectory(peer, poll_s=1.0, on_promotion=lambda _: None)
    for version in range(3 * KEPT_DIGESTS):
        event = CheckpointPromoted(model="m", version=version, digest=f"d{version}")
        await directory.on_promoted(event, cast(Any, None))
    assert await directory.digest("m", 3 * KEPT_DIGESTS - 1) == f"d{3 * KEPT_DIGESTS - 1}"
    assert num_kept(directory) <= KEPT_DIGESTS + 100, "beside the address and such"
    await peer.stop()


def test_engines_that_failed_long_ago_are_forgotten() -> None:
    clock = [0.0]
    pick = PickEngine(cast(Any, None), holding=cast(Any, None), suspect_s=5.0, monotonic=lambda: clock[0])
    for number in range(200):
        clock[0] += 1.0
        pick.suspect(engine(f"engine-{number}"))
    assert num_kept(pick) <= 6
