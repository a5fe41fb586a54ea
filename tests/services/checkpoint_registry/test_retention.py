"""Old versions go; what the tree, an engine or a run needs stays, whole, and can become head again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.services.checkpoint_registry.conftest import MODEL, START, RegistryHarness
from tests.services.checkpoint_registry.planner_double import PROFILE, evaluation_run
from tests.services.checkpoint_registry.running_registry import Stack, policy, upload, weights
from tests.support.waiting import until

import policy_files
from blob_store import BlobRef, BlobStore, MemoryBlobStore, S3BlobStore
from checkpoint_registry.adapters.policy_store import PolicyUploads
from checkpoint_registry.adapters.version_files import VersionFiles
from checkpoint_registry.domain.errors import VersionRemoved
from checkpoint_registry.domain.models import EngineLease, PublishedVersion
from checkpoint_registry.domain.retention import (
    ListedVersion,
    RetentionPolicy,
    StoredVersion,
    beyond_newest,
    may_go,
)
from checkpoint_registry.usecases.retention import PruneVersions, RetentionDeps
from identities.entities import checkpoint_id
from identities.objects import parse_policy_version, policies, policy_manifest
from policy_files import PolicyFacts
from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1 import registry_pb2
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.training.v1.training_pb2 import CanaryRow, PolicyManifest
from upcycle.errors import Unavailable

NEWEST = 20
REF = BlobRef("k", "a" * 64, 1)
POLICY = RetentionPolicy(keep_newest=4, min_age=timedelta(hours=1))


def version(number: int, *, age_h: float | None = 2.0, checkpoint_id: str = "") -> StoredVersion:
    created_at = None if age_h is None else START - timedelta(hours=age_h)
    return StoredVersion(MODEL, number, created_at, checkpoint_id)


def unneeded(
    published: Sequence[StoredVersion], needed: set[int], policy: RetentionPolicy, now: datetime
) -> list[int]:
    """What a sweep takes of one model."""
    listed = [ListedVersion(one.model, one.version, one.created_at is not None) for one in published]
    stored = {one.version: one for one in published}
    old = [number for number in beyond_newest(listed, policy) if number not in needed]
    return [number for number in old if may_go(stored[number], policy, now)]


def test_only_old_versions_that_nothing_needs_beyond_the_newest_are_removed() -> None:
    published = [version(0), version(1), version(2, checkpoint_id="ckpt"), version(3, age_h=0.5)]
    published += [version(4, age_h=None), version(5), *(version(number) for number in (6, 7, 8, 9))]
    published += [version(10, age_h=None)]
    assert unneeded(published, {0, 5}, POLICY, START) == [1, 4]
    assert unneeded(published[:4], set(), POLICY, START) == []
    assert unneeded([version(3, age_h=None)], set(), POLICY, START) == []


def test_a_version_of_exactly_the_least_age_may_go_and_a_younger_one_stays() -> None:
    newest = [version(number) for number in (6, 7, 8, 9)]
    assert unneeded([version(4, age_h=1.0), version(5, age_h=0.999), *newest], set(), POLICY, START) == [4]


def test_a_publication_that_may_still_be_under_way_among_the_newest_stays() -> None:
    published = [version(number, age_h=None if number == 5 else 2.0) for number in range(3, 9)]
    assert unneeded(published, set(), POLICY, START) == [3], "4, 6, 7 and 8 are the four newest"


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.builds(
            version,
            st.integers(0, 40),
            age_h=st.none() | st.floats(0, 3),
            checkpoint_id=st.sampled_from(["", "", "ckpt"]),
        ),
        unique_by=lambda one: one.version,
    ),
    st.sets(st.integers(0, 40)),
    st.integers(1, 6),
)
def test_what_is_needed_new_young_or_a_checkpoint_never_goes(
    published: Sequence[StoredVersion], needed: set[int], keep: int
) -> None:
    gone = set(unneeded(published, needed, replace(POLICY, keep_newest=keep), START))
    by_number = {one.version: one for one in published}
    complete = sorted(one.version for one in published if one.created_at is not None)
    assert not gone & needed
    assert not gone & set(complete[-keep:])
    for number in gone:
        one = by_number[number]
        assert not one.checkpoint_id
        assert one.created_at is None or START - one.created_at >= POLICY.min_age


def _write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


async def publish(
    store: BlobStore, folder: Path, number: int, parent: PolicyManifest | None, checkpoint_id: str = ""
) -> PolicyManifest:
    """Weights of their own, a tokenizer that all versions share."""
    _write(folder, {**policy(), "model.safetensors": weights(number % 256)})
    facts = PolicyFacts(
        model=MODEL,
        version=number,
        created_at=START - timedelta(days=1),
        parent=parent,
        canary=(CanaryRow(token_ids=[1, 2], logprobs=[-1.0]),),
        checkpoint_id=checkpoint_id,
    )
    return await policy_files.upload(store, folder, facts)


@dataclasses.dataclass
class Shelf:
    """Versions 0 to 20 of a model; 5 and 10 in the tree, 15 on its way there."""

    harness: RegistryHarness
    store: MemoryBlobStore
    folder: Path
    manifests: dict[int, PolicyManifest]

    def pruner(self, store: BlobStore | None = None) -> PruneVersions:
        harness, files = self.harness, VersionFiles(store or self.store)
        deps = RetentionDeps(
            harness.models, harness.leases, harness.holds, harness.planner, harness.versions, files
        )
        return PruneVersions(deps, POLICY, now=harness.clock)

    async def prune(self) -> dict[str, list[int]]:
        """The sweep that finds, and the one that removes."""
        prune = self.pruner()
        assert await prune.sweep() == {}
        return await prune.sweep()

    def versions(self) -> set[int]:
        keys = [key for key in self.store.objects if key.startswith(f"default/policies/{MODEL}/")]
        return {int(key.split("/")[3][1:]) for key in keys if key.endswith("/manifest.json")}

    async def whole(self, manifest: PolicyManifest, name: str) -> bytes:
        """Weights of a version, fetched and verified."""
        directory = await policy_files.fetch(self.store, manifest, self.folder / f"cache-{name}")
        return (directory / "model.safetensors").read_bytes()


async def filled_shelf(harness: RegistryHarness, tmp_path: Path) -> Shelf:
    store, manifests = MemoryBlobStore(), {}
    parent = None
    for number in range(NEWEST + 1):
        identity = checkpoint_id(MODEL, number) if number in (5, 10, 15) else ""
        parent = manifests[number] = await publish(store, tmp_path / "policy", number, parent, identity)
        if number > 0:
            digest, ref = parent.digest, policy_files.manifest_ref(parent)
            fact = PublishedVersion(MODEL, number, digest, ref, "run-train", number, START)
            assert await harness.versions.record(fact)
    for number in (5, 10):
        await harness.save(number, digest=manifests[number].digest)
    harness.clock.forward(7200)
    return Shelf(harness, store, tmp_path, manifests)


@pytest.fixture
async def shelf(harness: RegistryHarness, tmp_path: Path) -> Shelf:
    return await filled_shelf(harness, tmp_path)


async def lease(harness: RegistryHarness, serves: int, *holds: int, ttl_s: float = 30.0) -> None:
    body = registry_pb2.EngineLease(model=MODEL, version=serves, held_versions=holds).SerializeToString()
    expires_at = harness.clock() + timedelta(seconds=ttl_s)
    engine = EngineLease(f"engine-{serves}", MODEL, common_pb2.CHANNEL_LATEST, body, expires_at)
    await harness.leases.renew(engine)


async def test_a_sweep_leaves_tree_engines_runs_and_the_newest_and_all_of_them_whole(shelf: Shelf) -> None:
    harness = shelf.harness
    await lease(harness, 7, 3)
    await lease(harness, 8, ttl_s=-60)  # lapsed a moment ago
    await lease(harness, 2, ttl_s=-3600)
    harness.planner.runs["run-eval"] = evaluation_run("run-eval", MODEL, 9, PROFILE)
    policies = PolicyUploads(
        shelf.store, staging_dir=shelf.folder, max_import_bytes=1, now=shelf.harness.clock
    )
    await policies.fork(policy_files.manifest_ref(shelf.manifests[5]), "forked")

    gone = await shelf.prune()
    assert gone == {MODEL: [1, 2, 4, 6, 11, 12, 13, 14, 16]}
    assert shelf.versions() == {0, 3, 5, 7, 8, 9, 10, 15, 17, 18, 19, 20}
    assert not [key for key in shelf.store.objects if "v00000013" in key]
    for number in shelf.versions():
        assert await shelf.whole(shelf.manifests[number], str(number)) == weights(number)
    forked = await policy_files.load(shelf.store, "forked", 0)
    assert await shelf.whole(forked, "forked") == weights(5)
    assert await shelf.prune() == {}


async def test_a_removed_version_is_neither_latest_nor_found_again_when_its_fact_comes_late(
    shelf: Shelf,
) -> None:
    versions = shelf.harness.versions
    assert (await versions.version(MODEL, 12)).digest == shelf.manifests[12].digest
    await shelf.prune()
    with pytest.raises(VersionRemoved, match="version 12 of model 'incident' was removed at"):
        await versions.version(MODEL, 12)
    ref, digest = policy_files.manifest_ref(shelf.manifests[12]), shelf.manifests[12].digest
    assert not await versions.record(PublishedVersion(MODEL, 12, digest, ref, "run-train", 12, START))
    with pytest.raises(VersionRemoved):
        await versions.version(MODEL, 12)
    assert (await shelf.harness.models.model(MODEL)).latest.version == NEWEST


async def test_a_version_that_went_before_its_fact_came_is_not_offered_when_it_comes(shelf: Shelf) -> None:
    """Version 21 is the newest: brought back, it would be what every engine loads."""
    versions, late = (
        shelf.harness.versions,
        PublishedVersion(MODEL, 21, "d" * 64, REF, "run-train", 21, START),
    )
    await versions.mark_removed(MODEL, 21, START)
    assert not await versions.record(late)
    with pytest.raises(VersionRemoved):
        await versions.version(MODEL, 21)
    assert (await shelf.harness.models.model(MODEL)).latest.version == NEWEST


async def test_latest_is_the_highest_version_that_is_left(shelf: Shelf) -> None:
    await shelf.harness.versions.mark_removed(MODEL, NEWEST, START)
    assert (await shelf.harness.models.model(MODEL)).latest.version == NEWEST - 1


async def test_after_a_sweep_a_checkpoint_is_promoted_and_the_one_before_comes_back(shelf: Shelf) -> None:
    await shelf.prune()
    for number, revision in ((10, 1), (5, 2)):
        target = await shelf.harness.models.version(MODEL, number)
        await shelf.harness.models.move_head(
            target, expected_revision=revision, actor="a person", reason="looks better", at=START
        )
        assert await shelf.harness.head() == number
        manifest = await policy_files.load(shelf.store, MODEL, number)
        assert await shelf.whole(manifest, str(number)) == weights(number)
    following = await publish(shelf.store, shelf.folder / "next", 21, shelf.manifests[20])
    assert await shelf.whole(following, "following") == weights(21)


async def test_who_cannot_be_asked_may_need_everything(shelf: Shelf) -> None:
    before = dict(shelf.store.objects)
    shelf.harness.planner.is_away = True
    with pytest.raises(Unavailable):
        await shelf.prune()
    key = policy_manifest(MODEL, 12)
    shelf.store.objects[key] = b"rotten"
    shelf.harness.planner.is_away = False
    with pytest.raises(Unavailable, match="cannot be read"):
        await shelf.prune()
    assert {**shelf.store.objects, key: before[key]} == before


class Killed(BaseException):
    """Stands for kill -9."""


class Guarded:
    """A store that is killed before its n-th delete."""

    def __init__(self, inner: MemoryBlobStore, deletes: int) -> None:
        self._inner = inner
        self._left = deletes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def delete(self, key: str) -> None:
        if not self._left:
            raise Killed
        self._left -= 1
        await self._inner.delete(key)


async def test_a_kill_within_a_sweep_leaves_nothing_that_the_next_one_does_not_end(shelf: Shelf) -> None:
    whole = dict(shelf.store.objects)
    await shelf.prune()
    swept = dict(shelf.store.objects)
    for deletes in range(len(whole) - len(swept)):
        shelf.store.objects.clear()
        shelf.store.objects.update(whole)
        guarded: Any = Guarded(shelf.store, deletes)
        prune = shelf.pruner(guarded)
        assert await prune.sweep() == {}
        with pytest.raises(Killed):
            await prune.sweep()
        assert shelf.versions() >= {0, 5, 10, 15, 17, 18, 19, 20}
        await shelf.prune()
        assert shelf.store.objects == swept, f"killed before delete {deletes + 1}"


async def test_the_service_sweeps_by_the_clock(stack: Stack, tmp_path: Path) -> None:
    stack.settings = stack.settings.model_copy(
        update={"retention_every_s": 0.2, "retention_keep_versions": 2, "retention_min_age_s": 0.0}
    )
    store = S3BlobStore(stack.settings.s3)
    await store.start()
    async with stack.registry() as stub:
        base = (await upload(stub, MODEL, policy())).base
        parent = await policy_files.load(store, MODEL, 0)
        for number in range(1, 6):
            parent = await publish(store, tmp_path / "policy", number, parent)

        async def is_swept() -> bool:
            kept = {parse_policy_version(key) for key in await store.list(policies()) if "manifest" in key}
            return kept == {(MODEL, 0), (MODEL, 4), (MODEL, 5)}

        await until(is_swept, "the versions 1 to 3 to go")
        assert (await stub.GetModel(pb.GetModelRequest(model=MODEL))).head.manifest == base.manifest
    await store.stop()
