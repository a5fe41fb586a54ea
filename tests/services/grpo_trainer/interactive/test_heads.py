"""Head by a registry over a real channel: read, moved by compare-and-set, and what absences mean."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from grpc_edge import GrpcServer, Peer
from grpc_edge.access import OPEN
from grpo_trainer.domain.errors import UnknownModel
from grpo_trainer.interactive.heads import RegistryHeads
from service_kit.ports import free_ports
from upcycle.api.registry.v1 import registry_pb2
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.registry.v1.service_pb2_grpc import (
    RegistryServiceServicer,
    add_RegistryServiceServicer_to_server,
)
from upcycle.errors import Unavailable

MODEL = "tiny"


class Registry(RegistryServiceServicer):
    """One model, with the checkpoints that it has heard of."""

    def __init__(self) -> None:
        self.known = ["v0"]
        self.head = "v0"
        self.revision = 1
        self.loses_answers = False
        self.is_away_once = False
        self.has_a_bug = False

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:
        if self.has_a_bug:
            raise ZeroDivisionError("a bug")
        if request.model != MODEL:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
        head = registry_pb2.Checkpoint(checkpoint_id=self.head, model=MODEL)
        return pb.GetModelResponse(model=registry_pb2.Model(head_revision=self.revision), head=head)

    async def GetCheckpoint(self, request: pb.GetCheckpointRequest, context: Any) -> pb.GetCheckpointResponse:
        if self.is_away_once:
            self.is_away_once = False
            await context.abort(grpc.StatusCode.UNAVAILABLE, "restarts")
        if request.checkpoint_id not in self.known:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such checkpoint")
        return pb.GetCheckpointResponse()

    async def SetHead(self, request: pb.SetHeadRequest, context: Any) -> pb.SetHeadResponse:
        if request.checkpoint_id not in self.known:
            await context.abort(grpc.StatusCode.NOT_FOUND, "not recorded")
        if request.expected_revision != self.revision:
            await context.abort(grpc.StatusCode.ABORTED, "head moved")
        self.head, self.revision = request.checkpoint_id, self.revision + 1
        if self.loses_answers:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        return pb.SetHeadResponse(move=registry_pb2.HeadMove(revision=self.revision))


@pytest.fixture
def registry() -> Registry:
    # The other rpcs answer UNIMPLEMENTED, and nothing here calls them.
    return Registry()  # type: ignore[abstract]


@pytest.fixture
async def heads(registry: Registry) -> AsyncIterator[RegistryHeads]:
    server = GrpcServer("127.0.0.1", 0, OPEN, grace_s=0.1).add(
        add_RegistryServiceServicer_to_server, registry
    )
    await server.start()
    peer = Peer("registry", server.address, idempotent=RegistryHeads.IDEMPOTENT)
    await peer.start()
    yield RegistryHeads(peer)
    await peer.stop()
    await server.stop()


async def promoted(heads: RegistryHeads, checkpoint_id: str, expected_revision: int) -> int | None:
    return await heads.promote(MODEL, checkpoint_id, expected_revision=expected_revision, reason="a step")


async def test_promote_moves_head_once_and_returns_its_new_revision(
    registry: Registry, heads: RegistryHeads
) -> None:
    registry.known.append("v1")
    assert (await heads.head(MODEL)).revision == 1
    assert await promoted(heads, "v1", 1) == 2
    assert await promoted(heads, "v1", 1) == 2  # asked again, as after a crash
    assert (registry.head, registry.revision) == ("v1", 2)


async def test_promote_does_not_move_a_head_at_another_revision(
    registry: Registry, heads: RegistryHeads
) -> None:
    registry.known.append("v1")
    registry.revision = 5
    assert await promoted(heads, "v1", 1) is None
    assert registry.head == "v0"


async def test_promote_waits_until_the_registry_has_recorded_the_checkpoint(
    registry: Registry, heads: RegistryHeads
) -> None:
    assert not await heads.holds(MODEL, "v1")
    with pytest.raises(Unavailable, match="v1 to be recorded"):
        await promoted(heads, "v1", 1)
    registry.known.append("v1")
    registry.is_away_once = True
    assert await heads.holds(MODEL, "v1")  # asked again


async def test_a_promotion_whose_answer_was_lost_counts_as_done(
    registry: Registry, heads: RegistryHeads
) -> None:
    registry.known.append("v1")
    registry.loses_answers = True
    with pytest.raises(Unavailable, match="gone"):
        await promoted(heads, "v1", 1)
    registry.loses_answers = False
    assert await promoted(heads, "v1", 1) == 2


async def test_an_unknown_model_and_an_unavailable_registry_raise_different_errors(
    heads: RegistryHeads,
) -> None:
    with pytest.raises(UnknownModel, match="'other' is not registered"):
        await heads.head("other")
    (nowhere,) = free_ports(1)
    absent = Peer("registry", f"127.0.0.1:{nowhere}")
    await absent.start()
    with pytest.raises(Unavailable, match="the registry at"):
        await RegistryHeads(absent).head(MODEL)
    await absent.stop()


async def test_a_bug_of_the_registry_is_waited_for_and_fails_no_run(
    registry: Registry, heads: RegistryHeads
) -> None:
    registry.has_a_bug = True
    with pytest.raises(Unavailable, match=r"the registry at .*INTERNAL"):
        await heads.head(MODEL)
