"""A fact that is well-formed and false becomes a dead letter, and never a version for engines to load."""

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import Message
from tests.services.checkpoint_registry.conftest import MODEL
from tests.services.checkpoint_registry.running_registry import Stack, manifest_of, policy, upload
from tests.support.waiting import until

from blob_store import BlobRef, MemoryBlobStore, S3BlobStore
from blob_store import ref as blob_ref
from checkpoint_registry import wire
from checkpoint_registry.adapters.announced_versions import KeptAnnouncements
from event_bus.dead_letter_box import DeadLetterBox
from identities import objects
from identities.entities import checkpoint_id
from identities.objects import PolicyFolder
from policy_files import Announcement, FalseAnnouncement, KeptFacts, manifest_bytes, manifest_ref
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.training.v1.events_pb2 import CheckpointSaved, PolicyPublished
from upcycle.errors import Unavailable


def about(kind: type[Any], model: str, version: int) -> Any:
    """A fact of this type as it should be."""
    manifest = manifest_of(model, version)
    event = kind(model=model, version=version, digest=manifest.digest, step=version)
    event.manifest.CopyFrom(blob_ref.to_wire(manifest_ref(manifest)))
    if kind is CheckpointSaved:
        event.checkpoint_id = checkpoint_id(model, version)
    return event


def said(version: int = 1) -> Announcement:
    return wire.announcement(about(PolicyPublished, MODEL, version))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 0}, "version is 0; trained versions count from 1"),
        ({"digest": ""}, "digest is '', expected 64 hexadecimal digits"),
        ({"digest": "F" * 64}, "expected 64 hexadecimal digits"),
        ({"digest": "f" * 65}, "expected 64 hexadecimal digits"),
        ({"manifest": BlobRef("", "a" * 64, 1)}, "said to be at ''"),
        ({"manifest": BlobRef(objects.policy_manifest(MODEL, 2), "a" * 64, 1)}, "v00000001/manifest.json'"),
        ({"manifest": BlobRef(objects.policy_manifest("b", 1), "a" * 64, 1)}, "v00000001/manifest.json'"),
        ({"manifest": BlobRef(objects.policy_manifest(MODEL, 1), "", 1)}, "the manifest's sha256 is ''"),
        ({"model": ""}, "the model slug is empty"),
    ],
)
def test_a_fact_that_contradicts_itself_is_false(change: dict[str, Any], why: str) -> None:
    said().check()
    with pytest.raises(FalseAnnouncement, match=r"policy.published .*; nothing was recorded") as found:
        replace(said(), **change).check()
    assert why in str(found.value)


def test_a_candidate_under_the_id_of_another_is_false() -> None:
    event = about(CheckpointSaved, MODEL, 1)
    assert wire.candidate_from_wire(event).version == 1
    event.checkpoint_id = checkpoint_id(MODEL, 2)
    with pytest.raises(FalseAnnouncement, match=r"checkpoint.saved incident@v1: it names"):
        wire.candidate_from_wire(event)


async def test_a_version_whose_files_are_not_stored_or_are_others_is_false() -> None:
    store = MemoryBlobStore()
    files = KeptAnnouncements(store)
    with pytest.raises(FalseAnnouncement, match="no manifest is stored at 'default/policies/incident/v0"):
        await files.prove(said())
    for other in (manifest_bytes(manifest_of(MODEL, 2)), b"{}"):
        await store.put(said().manifest.key, other)
        with pytest.raises(FalseAnnouncement, match=r"incident@v2 with|is none of its manifests"):
            await files.prove(said())
    await store.put(said().manifest.key, manifest_bytes(manifest_of(MODEL, 1)))
    await files.prove(said())


async def test_a_fact_that_is_kept_beside_the_files_of_another_version_is_not_taken() -> None:
    store = MemoryBlobStore()
    kept = about(PolicyPublished, MODEL, 2)
    await KeptFacts(store).keep(kept)
    key = objects.policy_fact(MODEL, 1, objects.PUBLISHED)
    await store.put(key, await store.read(objects.policy_fact(MODEL, 2, objects.PUBLISHED)) or b"")
    files = KeptAnnouncements(store)
    assert (await files.published(PolicyFolder(MODEL, 2))) == wire.version_from_wire(kept)
    with pytest.raises(Unavailable, match="it is of incident@v2"):
        await files.published(PolicyFolder(MODEL, 1))


async def dead_letters(stack: Stack, event_id: str) -> list[str]:
    async with DeadLetterBox.opened(stack.settings.bus) as box:
        letters = await box.letters(limit=100)
    return [one.reason for one in letters if one.event_id == event_id]


@pytest.mark.parametrize("kind", [PolicyPublished, CheckpointSaved])
async def test_a_false_fact_is_a_dead_letter_and_changes_nothing(stack: Stack, kind: type[Message]) -> None:
    model, false_id = f"poisoned-{kind.__name__.lower()}", f"false/{kind.__name__}"
    async with stack.registry() as stub:
        await upload(stub, model, policy())
        false = about(kind, model, 1_000_000)
        await stack.bus.publish(false, model=model, event_id=false_id)

        async def is_dead() -> list[str]:
            return await dead_letters(stack, false_id)

        (reason,) = await until(is_dead, "the dead letter")
        assert f"{model}@v1000000: no manifest is stored at" in reason
        assert "; nothing was recorded" in reason
        found = (await stub.GetModel(pb.GetModelRequest(model=model))).model
        assert (found.latest.version, found.newest_version) == (0, 0)
        await stack.publish(model, 1)

        async def is_latest() -> bool:
            found = (await stub.GetModel(pb.GetModelRequest(model=model))).model
            return found.latest.version == 1

        await until(is_latest, "the true version to be latest")


async def test_a_fact_that_comes_again_after_its_files_were_removed_is_no_dead_letter(stack: Stack) -> None:
    model = "pruned"
    async with stack.registry() as stub:
        await upload(stub, model, policy())
        manifest = await stack.publish(model, 1)

        async def latest() -> int:
            return int((await stub.GetModel(pb.GetModelRequest(model=model))).model.latest.version)

        async def is_latest() -> bool:
            return await latest() == 1

        await until(is_latest, "the version to be recorded")
        store = S3BlobStore(stack.settings.s3)
        await store.start()
        await store.delete(manifest_ref(manifest).key)
        await store.stop()
        again = about(PolicyPublished, model, 1)
        await stack.bus.publish(again, model=model, event_id="again/pruned")
        await stack.publish(model, 2)  # after it in the stream

        async def is_newer() -> bool:
            return await latest() == 2

        await until(is_newer, "the next version to be recorded")
    assert await dead_letters(stack, "again/pruned") == []
