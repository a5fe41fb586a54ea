"""The whole registry as a process would run it: real NATS, real S3, real gRPC on both sides."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import REGISTRY
from tests.services.checkpoint_registry.running_registry import Stack, policy, upload

from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1 import events_pb2, registry_pb2
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.rpc import RemoteConflict, RemoteNotFound, RemoteRefused, remote_errors


@pytest.mark.parametrize(
    ("model", "folder"), [("imported", "imported"), ("Qwen/Qwen3.5-4B", "Qwen%2FQwen3.5-4B")]
)
async def test_an_imported_model_is_its_version_0_and_head(stack: Stack, model: str, folder: str) -> None:
    async with stack.registry() as stub:
        imported = await upload(stub, model, policy())
        assert imported.created
        assert imported.base.state == registry_pb2.CHECKPOINT_STATE_BASE
        found = await stub.GetModel(pb.GetModelRequest(model=model))
        assert (found.model.head_version, found.model.head_revision, found.head.is_head) == (0, 1, True)
        assert found.head.manifest.key == f"default/policies/{folder}/v00000000/manifest.json"
        again = await upload(stub, model, policy(), if_not_exists=True)
        assert not again.created
        with pytest.raises(RemoteConflict, match="MODEL_EXISTS"):
            await upload(stub, model, policy())
        with pytest.raises(RemoteConflict, match="MODEL_EXISTS"):
            await upload(stub, model, policy(fill=1), if_not_exists=True)


@pytest.mark.parametrize(
    ("model", "files", "why"),
    [
        ("Not a slug", policy(), "not a slug"),
        ("broken", {**policy(), "../evil.json": b"x"}, "plain relative path"),
        ("broken", {**policy(), "model.safetensors": b"garbage"}, "safetensors"),
        ("broken", {"config.json": b"{}"}, "safetensors"),
        ("broken", {}, "safetensors"),
    ],
)
async def test_a_bad_import_changes_nothing(
    stack: Stack, model: str, files: dict[str, bytes], why: str
) -> None:
    async with stack.registry() as stub:
        with pytest.raises(RemoteRefused, match=why) as refused:
            await upload(stub, model, files)
        assert str(stack.settings.sql.data_dir) not in refused.value.message
        assert not (await stub.ListModels(pb.ListModelsRequest())).models


async def test_an_upload_has_a_header_and_whole_files(stack: Stack) -> None:
    header = pb.ImportModelRequest(header=pb.ImportHeader(model="odd"))

    def chunk(name: str, data: bytes = b"{}") -> pb.ImportModelRequest:
        return pb.ImportModelRequest(chunk=pb.FileChunk(name=name, data=data))

    async def refused(messages: list[pb.ImportModelRequest], why: str) -> None:
        async def send() -> AsyncIterator[pb.ImportModelRequest]:
            for message in messages:
                yield message

        with pytest.raises(RemoteRefused, match=why), remote_errors("import"):
            await stub.ImportModel(send())

    async with stack.registry() as stub:
        await refused([], "first message")
        await refused([chunk("config.json")], "first message")
        await refused([header, header], "chunks of files only")
        await refused([header, chunk("a.json"), chunk("b.json"), chunk("a.json")], "two places")
        await refused([header, chunk("/etc/passwd")], "plain relative path")
        await refused([header, chunk("a.json", b"x" * 5000)], "larger than 4096 bytes")


async def test_a_poisoned_checkpoint_leaves_the_rest_running(stack: Stack) -> None:
    async with stack.registry() as stub:
        await stack.save("never-imported", 1)
        await upload(stub, "sound", policy())
        await stack.save("sound", 1)
        assert (await stack.fact(events_pb2.CheckpointPromoted, "sound")).version == 1


async def test_a_fork_shares_files_and_has_its_own_tree(stack: Stack) -> None:
    async with stack.registry() as stub:
        origin = await upload(stub, "origin", policy())
        request = pb.ForkModelRequest(source_model="origin", model="fork")
        forked = await stub.ForkModel(request)
        assert forked.base.digest == origin.base.digest
        assert forked.base.manifest.key == "default/policies/fork/v00000000/manifest.json"
        assert forked.model.forked_from_checkpoint_id == "ckpt-origin-v00000000"
        with pytest.raises(RemoteConflict), remote_errors("fork"):
            await stub.ForkModel(request)
        with pytest.raises(RemoteNotFound), remote_errors("fork"):
            await stub.ForkModel(pb.ForkModelRequest(source_model="nowhere", model="other"))


async def test_saved_candidates_are_judged_and_announced(stack: Stack) -> None:
    async with stack.registry() as stub:
        base = (await upload(stub, "loop", policy())).base
        await stack.save("loop", 1)
        promoted = await stack.fact(events_pb2.CheckpointPromoted, "loop")
        assert (promoted.version, promoted.head_revision) == (1, 2)
        assert promoted.previous_checkpoint_id == base.checkpoint_id
        evaluated = await stack.fact(events_pb2.CheckpointEvaluated, "loop")
        assert evaluated.report.passed
        assert evaluated.report.candidate_rate > evaluated.report.head_rate
        assert {family.family for family in evaluated.report.families} == {
            f"family-{index}" for index in range(4)
        }
        await stack.save("loop", 2)
        held = await stack.fact(events_pb2.CheckpointHeld, "loop")
        assert held.version == 2
        listed = (await stub.ListCheckpoints(pb.ListCheckpointsRequest(model="loop"))).checkpoints
        assert [checkpoint.state for checkpoint in listed] == [
            registry_pb2.CHECKPOINT_STATE_BASE,
            registry_pb2.CHECKPOINT_STATE_PROMOTED,
            registry_pb2.CHECKPOINT_STATE_HELD,
        ]
        assert [checkpoint.is_head for checkpoint in listed] == [False, True, False]
        assert listed[1].gate.passed
        assert len(stack.planner.requests) == 2
        assert sample("upcycle_registry_head_version", model="loop") == 1
        assert sample("upcycle_registry_head_moves_total", model="loop", direction="forward", by="gate") == 1
        assert sample("upcycle_registry_gate_decisions_total", model="loop", outcome="held") == 1


def sample(name: str, **labels: str) -> float | None:
    """A series of this process, where the registry runs too."""
    return REGISTRY.get_sample_value(name, labels)


async def test_a_restart_resumes_a_judgement(stack: Stack) -> None:
    rates, stack.planner.rates = stack.planner.rates, {}
    async with stack.registry() as stub:
        await upload(stub, "resumed", policy())
        await stack.save("resumed", 1)
        await stack.planner.ordered(1)
    stack.planner.rates = rates
    async with stack.registry() as stub:
        promoted = await stack.fact(events_pb2.CheckpointPromoted, "resumed")
        assert promoted.version == 1
        assert (await stub.GetModel(pb.GetModelRequest(model="resumed"))).model.head_version == 1
        assert len(stack.planner.requests) == 1


async def test_head_moves_by_compare_and_set_with_an_audit(stack: Stack) -> None:
    async with stack.registry() as stub:
        base = (await upload(stub, "manual", policy())).base
        await stack.save("manual", 1)
        await stack.fact(events_pb2.CheckpointPromoted, "manual")
        request = pb.SetHeadRequest(
            model="manual",
            checkpoint_id=base.checkpoint_id,
            expected_revision=1,
            actor="ada",
            reason="regression seen in production",
        )
        with pytest.raises(RemoteConflict, match="HEAD_MOVED"), remote_errors("set head"):
            await stub.SetHead(request)
        request.expected_revision = 2
        moved = await stub.SetHead(request)
        assert (moved.model.head_version, moved.move.revision) == (0, 3)
        rolled_back = await stack.fact(events_pb2.CheckpointRolledBack, "manual")
        assert (rolled_back.version, rolled_back.actor) == (0, "ada (unauthenticated)")
        moves = (await stub.ListHeadMoves(pb.ListHeadMovesRequest(model="manual"))).moves
        actors = [(move.revision, move.actor) for move in moves]
        assert actors == [(1, "import"), (2, "gate"), (3, "ada (unauthenticated)")]
        with pytest.raises(RemoteRefused, match="actor and reason"), remote_errors("set head"):
            await stub.SetHead(pb.SetHeadRequest(model="manual", checkpoint_id=base.checkpoint_id))
        request.actor = "a" * 65
        with pytest.raises(RemoteRefused, match="65 characters; at most 64"), remote_errors("set head"):
            await stub.SetHead(request)


async def test_training_does_not_move_the_head_of_a_model_with_a_gate_and_a_person_does(stack: Stack) -> None:
    async with stack.registry() as stub:
        base = (await upload(stub, "gated", policy())).base
        request = pb.SetHeadRequest(
            model="gated", checkpoint_id=base.checkpoint_id, actor="gate", reason="a step", unless_gated=True
        )
        assert (await stub.SetHead(request)).move.revision == 1  # no gate yet, and head is there already
        await stack.save("gated", 1)
        await stack.fact(events_pb2.CheckpointPromoted, "gated")
        found = (await stub.GetModel(pb.GetModelRequest(model="gated"))).model
        assert (found.gate_taskset, found.head_revision, found.head_set_revision) == ("held-out", 2, 1)
        with pytest.raises(RemoteRefused, match="GATE_DECIDES") as refused, remote_errors("set head"):
            await stub.SetHead(request)
        assert "its gate on 'held-out'" in refused.value.message
        request.checkpoint_id = found.head_checkpoint_id  # where the gate put it
        assert (await stub.SetHead(request)).move.revision == 2
        request.checkpoint_id, request.unless_gated = base.checkpoint_id, False
        moved = await stub.SetHead(request)
        assert (moved.model.head_version, moved.model.head_set_revision) == (0, 3)
        assert moved.move.actor == "gate (unauthenticated)"


def lease(**changes: Any) -> registry_pb2.EngineLease:
    values: dict[str, Any] = {
        "engine_id": "engine-1",
        "base_url": "http://127.0.0.1:7303",
        "model": "leased",
        "channel": common_pb2.CHANNEL_LATEST,
        "version": 3,
        "held_versions": [1, 2],
        "state": registry_pb2.ENGINE_STATE_READY,
    }
    return registry_pb2.EngineLease(**(values | changes))


async def test_leases_live_as_long_as_promised_and_survive_a_restart(stack: Stack) -> None:
    async with stack.registry() as stub:
        await upload(stub, "leased", policy())
        renewed = await stub.RenewEngineLease(pb.RenewEngineLeaseRequest(lease=lease(), ttl_s=60))
        assert renewed.lease.HasField("expires_at")
        short = lease(engine_id="engine-2", channel=common_pb2.CHANNEL_HEAD)
        await stub.RenewEngineLease(pb.RenewEngineLeaseRequest(lease=short, ttl_s=5))
        everything = await stub.ListEngines(pb.ListEnginesRequest())
        assert [engine.engine_id for engine in everything.engines] == ["engine-1", "engine-2"]
        head = pb.ListEnginesRequest(model="leased", channel=common_pb2.CHANNEL_HEAD)
        assert [engine.engine_id for engine in (await stub.ListEngines(head)).engines] == ["engine-2"]
    async with stack.registry() as stub, asyncio.timeout(60):
        left = (await stub.ListEngines(pb.ListEnginesRequest(model="leased"))).engines
        while len(left) > 1:
            await asyncio.sleep(0.05)
            left = (await stub.ListEngines(pb.ListEnginesRequest(model="leased"))).engines
        assert [(engine.engine_id, list(engine.held_versions)) for engine in left] == [("engine-1", [1, 2])]


@pytest.mark.parametrize(
    ("changes", "ttl_s", "why"),
    [
        ({"engine_id": ""}, 5, "engine_id is empty"),
        ({"base_url": "127.0.0.1:80"}, 5, "base_url"),
        ({"channel": common_pb2.CHANNEL_UNSPECIFIED}, 5, "channel"),
        ({}, 0, "ttl_s"),
        ({}, 61, "60 s"),
        ({}, float("nan"), "ttl_s"),
        ({"model": "no@slug"}, 5, "not a slug"),
    ],
)
async def test_a_wrong_lease_is_refused(
    stack: Stack, changes: dict[str, Any], ttl_s: float, why: str
) -> None:
    async with stack.registry() as stub:
        with pytest.raises(RemoteRefused, match=why), remote_errors("renew"):
            await stub.RenewEngineLease(pb.RenewEngineLeaseRequest(lease=lease(**changes), ttl_s=ttl_s))


async def test_what_is_unknown_is_not_found(stack: Stack) -> None:
    async with stack.registry() as stub:
        with pytest.raises(RemoteNotFound, match="UNKNOWN_MODEL"), remote_errors("get"):
            await stub.GetModel(pb.GetModelRequest(model="nowhere"))
        with pytest.raises(RemoteNotFound, match="UNKNOWN_MODEL"), remote_errors("renew"):
            await stub.RenewEngineLease(pb.RenewEngineLeaseRequest(lease=lease(model="nowhere"), ttl_s=5))
        await upload(stub, "known", policy())
        with pytest.raises(RemoteNotFound, match="UNKNOWN_CHECKPOINT"), remote_errors("get"):
            await stub.GetCheckpoint(pb.GetCheckpointRequest(model="known", version=9))
        with pytest.raises(RemoteRefused, match="exactly one"), remote_errors("get"):
            await stub.GetCheckpoint(pb.GetCheckpointRequest(model="known"))
        base = await stub.GetCheckpoint(pb.GetCheckpointRequest(model="known", version=0))
        assert base.checkpoint.checkpoint_id == "ckpt-known-v00000000"
