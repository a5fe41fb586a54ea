"""Which evaluations trained a checkpoint: from the trainer's fact to the API, over restarts and forks."""

from dataclasses import replace

from tests.services.checkpoint_registry.conftest import MODEL, RegistryHarness, checkpoint
from tests.services.checkpoint_registry.running_registry import Stack, policy, upload

from upcycle.api.registry.v1 import events_pb2
from upcycle.api.registry.v1 import service_pb2 as pb

SOURCES = {"run-00000000000a": 38, "run-00000000000b": 2}


async def test_sources_are_kept_over_a_restart_and_shown_wherever_a_checkpoint_is(stack: Stack) -> None:
    async with stack.registry() as stub:
        base = (await upload(stub, "sourced", policy())).base
        assert dict(base.sources) == {}
        await stack.save("sourced", 1, SOURCES)
        await stack.fact(events_pb2.CheckpointPromoted, "sourced")
    async with stack.registry() as stub:
        found = await stub.GetCheckpoint(pb.GetCheckpointRequest(model="sourced", version=1))
        assert dict(found.checkpoint.sources) == SOURCES
        listed = (await stub.ListCheckpoints(pb.ListCheckpointsRequest(model="sourced"))).checkpoints
        assert [dict(one.sources) for one in listed] == [{}, SOURCES]
        head = (await stub.GetModel(pb.GetModelRequest(model="sourced"))).head
        assert dict(head.sources) == SOURCES


async def test_a_fork_has_its_own_sources_and_names_where_the_others_are(stack: Stack) -> None:
    async with stack.registry() as stub:
        await upload(stub, "trained", policy())
        await stack.save("trained", 1, SOURCES)
        promoted = await stack.fact(events_pb2.CheckpointPromoted, "trained")
        request = pb.ForkModelRequest(source_model="trained", model="branch")
        forked = (await stub.ForkModel(request)).base
        assert (forked.parent_checkpoint_id, dict(forked.sources)) == (promoted.checkpoint_id, {})
        await stack.save("branch", 1, {"run-00000000000c": 4})
        await stack.fact(events_pb2.CheckpointEvaluated, "branch")
        listed = (await stub.ListCheckpoints(pb.ListCheckpointsRequest(model="branch"))).checkpoints
        assert [dict(one.sources) for one in listed] == [{}, {"run-00000000000c": 4}]
        origin = await stub.GetCheckpoint(pb.GetCheckpointRequest(checkpoint_id=forked.parent_checkpoint_id))
        assert dict(origin.checkpoint.sources) == SOURCES


async def test_the_sources_of_a_checkpoint_are_stored(harness: RegistryHarness) -> None:
    await harness.gate.record(replace(checkpoint(1), sources=SOURCES), "")
    assert (await harness.models.version(MODEL, 1)).sources == SOURCES
