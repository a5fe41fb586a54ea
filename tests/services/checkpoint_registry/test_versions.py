"""Each published version is recorded once, and the highest that is left is latest, however facts come."""

import asyncio
from dataclasses import replace

import pytest
from tests.services.checkpoint_registry.conftest import MODEL, START, RegistryHarness, checkpoint
from tests.services.checkpoint_registry.running_registry import Stack, policy, upload

from blob_store import BlobRef
from blob_store import ref as blob_ref
from checkpoint_registry import wire
from checkpoint_registry.domain.errors import UnknownModel, UnknownVersion, VersionConflict
from checkpoint_registry.domain.models import HeadMove, PublishedVersion
from event_bus.topology import CHECKPOINT_REGISTRY
from identities.entities import checkpoint_id
from identities.objects import policy_manifest
from policy_files import manifest_ref
from upcycle.api.registry.v1 import registry_pb2
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.registry.v1.events_pb2 import CheckpointPromoted, CheckpointRolledBack
from upcycle.api.training.v1.events_pb2 import PolicyPublished
from upcycle.rpc import RemoteNotFound, remote_errors


def published(version: int) -> PublishedVersion:
    manifest = BlobRef(f"manifest-{version}", "a" * 64, 100)
    return PublishedVersion(MODEL, version, f"{version:064x}", manifest, "run-train", version, START)


async def latest(harness: RegistryHarness) -> PublishedVersion:
    return (await harness.models.model(MODEL)).latest


async def test_a_model_that_was_just_imported_has_its_base_as_latest(harness: RegistryHarness) -> None:
    assert await latest(harness) == checkpoint(0).published


async def test_facts_out_of_order_leave_the_highest_version_as_latest(harness: RegistryHarness) -> None:
    for version in (3, 1, 2):
        assert await harness.versions.record(published(version))
    assert await latest(harness) == published(3)
    assert await harness.versions.version(MODEL, 1) == published(1)


async def test_a_redelivered_fact_changes_nothing(harness: RegistryHarness) -> None:
    assert await harness.versions.record(published(1))
    assert not await harness.versions.record(replace(published(1), run_id="another"))
    assert await harness.versions.version(MODEL, 1) == published(1)


async def test_the_marker_of_a_versions_state_is_recorded_once_and_said_to_who_asks(
    harness: RegistryHarness,
) -> None:
    marker = BlobRef("default/training/m/run-train/step-00000001/state.json", "b" * 64, 7)
    fact = PolicyPublished(
        model=MODEL,
        version=1,
        digest=published(1).digest,
        manifest=blob_ref.to_wire(replace(published(1).manifest, key=policy_manifest(MODEL, 1))),
        run_id="run-train",
        training_state=blob_ref.to_wire(marker),
    )
    assert await harness.versions.record(wire.version_from_wire(fact))
    forged = replace(published(1), training_state=replace(marker, sha256="c" * 64))
    assert not await harness.versions.record(forged)
    said = wire.version_to_wire(await harness.versions.version(MODEL, 1))
    assert blob_ref.from_wire(said.training_state) == marker
    assert not wire.version_to_wire(published(2)).HasField("training_state")


async def test_a_version_with_other_weights_is_refused(harness: RegistryHarness) -> None:
    await harness.versions.record(published(1))
    with pytest.raises(VersionConflict, match="versions are never reused"):
        await harness.versions.record(replace(published(1), digest="f" * 64))
    with pytest.raises(VersionConflict):
        await harness.save(1, digest="f" * 64)
    assert (await latest(harness)).digest == published(1).digest


async def test_a_checkpoint_whose_publication_was_missed_is_a_published_version(
    harness: RegistryHarness,
) -> None:
    await harness.save(4)
    assert (await latest(harness)).version == 4
    assert not await harness.versions.record(replace(published(4), manifest=checkpoint(4).manifest))


async def test_what_was_never_published_is_unknown(harness: RegistryHarness) -> None:
    with pytest.raises(UnknownVersion, match="no version 7 of model 'incident'"):
        await harness.versions.version(MODEL, 7)
    with pytest.raises(UnknownModel):
        await harness.versions.record(replace(published(1), model="other"))


async def test_head_says_when_it_moved(harness: RegistryHarness) -> None:
    await harness.save(1)
    harness.clock.forward(60)
    target = await harness.models.version(MODEL, 1)
    await harness.models.move_head(
        target, expected_revision=1, actor="a person", reason="looks better", at=harness.clock()
    )
    assert (await harness.models.model(MODEL)).promoted_at == harness.clock()


async def test_versions_that_were_published_while_the_registry_was_down_are_recorded_when_it_is_back(
    stack: Stack,
) -> None:
    async with stack.registry() as stub:
        await upload(stub, "absent", policy())
    newest, older = [await stack.publish("absent", version) for version in (2, 1)]
    async with stack.registry() as stub:
        found: registry_pb2.Model | None = None
        async with asyncio.timeout(60):
            while found is None or found.latest.version != 2:
                found = (await stub.GetModel(pb.GetModelRequest(model="absent"))).model
                await asyncio.sleep(0.05)
        assert (found.latest.digest, found.latest.run_id, found.latest.step) == (newest.digest, "run-a", 2)
        assert found.latest.manifest == blob_ref.to_wire(manifest_ref(newest))
        assert (found.head_version, found.newest_version) == (0, 0)
        found_older = await stub.GetVersion(pb.GetVersionRequest(model="absent", version=1))
        assert found_older.version.digest == older.digest
        with pytest.raises(RemoteNotFound, match="no version 3 of model"), remote_errors("look it up"):
            await stub.GetVersion(pb.GetVersionRequest(model="absent", version=3))


def test_the_registrys_durable_reads_published_versions() -> None:
    assert PolicyPublished in CHECKPOINT_REGISTRY.events


@pytest.mark.parametrize(
    ("before", "after", "forward"), [(99_999_999, 10**8, True), (10**8, 99_999_999, False)]
)
def test_head_moves_forward_from_version_99999999_to_100000000_although_its_id_sorts_first(
    before: int, after: int, forward: bool
) -> None:
    ends = (checkpoint_id(MODEL, before), checkpoint_id(MODEL, after))
    move = HeadMove(MODEL, 2, *ends, "gate", "", START)
    assert move.is_forward is forward
    moved = wire.head_moved(checkpoint(after), move)
    assert type(moved) is (CheckpointPromoted if forward else CheckpointRolledBack)
