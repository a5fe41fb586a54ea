"""Who can write to the object store replaces the marker that says what a training state is: the registry
recorded its digest with the version, so the trainer refuses it by name, also where nothing is signed."""

import json
from pathlib import Path

import pytest
from tests.services.grpo_trainer.bench import MIXED, MODEL, RUN, Episodes, Trainer, World, submission
from tests.services.grpo_trainer.interactive.trainers import batch, trainer_on

from blob_store import BlobRef, ref_of_bytes
from grpo_trainer.domain.errors import BrokenArtifact
from identities import objects
from upcycle.api.training.v1.events_pb2 import PolicyPublished

FIRST = f"policy.published/default/{MODEL}/1"


def marker_in(world: World, folder: str) -> str:
    (found,) = [key for key in world.store.objects if objects.parse_step_marker(key) and folder in key]
    return found


def replaced(world: World, marker: str) -> None:
    """As an attacker would: other numbers for the optimizer, with digests that fit."""
    plain = json.loads(world.store.objects[marker])
    session = plain.get("session", plain)
    for file in session["tensors"]:
        data = world.store.objects[file["key"]]
        if file["key"].endswith(".safetensors"):
            data = data[:-1] + bytes([data[-1] ^ 1])
        key = f"{file['key'].rpartition('/')[0][:-1]}z/{file['key'].rpartition('/')[2]}"
        ref = ref_of_bytes(key, data)
        world.store.objects[key] = data
        file.update(key=ref.key, sha256=ref.sha256, size_bytes=ref.size_bytes)
    world.store.objects[marker] = json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


async def trained(folder: Path) -> World:
    world = World(folder)
    await world.publish_base()
    world.stream.append(submission(steps=9, prompts_per_step=1))
    await Episodes(world).group(0, MIXED)
    async with Trainer(world):
        await world.published(FIRST)
    await Episodes(world).group(1, MIXED, version=1)
    return world


def recorded(world: World) -> BlobRef:
    fact = world.recorder.events[FIRST]
    assert isinstance(fact, PolicyPublished)
    return BlobRef(fact.training_state.key, fact.training_state.sha256, fact.training_state.size_bytes)


async def test_each_version_names_the_marker_of_its_state_by_digest(tmp_path: Path) -> None:
    """Also one that is no checkpoint."""
    world = await trained(tmp_path)
    marker = marker_in(world, "step-00000001")
    assert recorded(world) == ref_of_bytes(marker, world.store.objects[marker])
    assert not any(event.startswith("checkpoint.saved") for event in world.recorder.events)


async def test_a_run_goes_on_with_the_state_that_the_registry_recorded(tmp_path: Path) -> None:
    world = await trained(tmp_path)
    async with Trainer(world):
        await world.published(f"policy.published/default/{MODEL}/2")


@pytest.mark.parametrize("how", ["tensors", "one byte"])
async def test_a_run_does_not_go_on_with_a_marker_that_was_replaced(tmp_path: Path, how: str) -> None:
    world = await trained(tmp_path)
    marker, known = marker_in(world, "step-00000001"), recorded(world)
    if how == "tensors":
        replaced(world, marker)
    else:
        world.store.objects[marker] += b"\n"
    async with Trainer(world):
        failed = await world.published(f"session.failed/{RUN}")
    now = ref_of_bytes(marker, world.store.objects[marker])
    assert failed.kind == "broken_artifact"
    for part in (marker, known.sha256, now.sha256, "the registry recorded"):
        assert part in failed.detail


async def test_interactive_training_does_not_go_on_with_a_marker_that_was_replaced(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.publish_base()
    async with trainer_on(world) as trainer:
        await trainer.forward_backward("a", batch(), group_size=4)
        await trainer.optim_step("b")
    replaced(world, marker_in(world, "/interactive/"))
    async with trainer_on(world) as trainer:
        with pytest.raises(BrokenArtifact, match="the registry recorded"):
            await trainer.forward_backward("c", batch(), group_size=4)
