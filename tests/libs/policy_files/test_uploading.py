"""Publishing and fetching, on the in-memory store and on a real S3."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.services.policy_engine.policies import make_policy

from blob_store import BlobRef, BlobStore, CorruptBlob, MemoryBlobStore, MissingBlob, S3BlobStore
from identities.objects import policy_manifest
from policy_files import (
    CorruptPolicy,
    InvalidManifest,
    InvalidPolicyDir,
    PolicyFacts,
    UnknownPolicy,
    VersionTaken,
    fetch,
    load,
    manifest_bytes,
    manifest_from_bytes,
    manifest_ref,
    policy_digest,
    prune,
    upload,
    verify,
)
from service_kit.groups import S3Settings
from upcycle.api.training.v1.training_pb2 import CanaryRow, PolicyManifest

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
CANARY = (CanaryRow(token_ids=[1, 2, 3], logprobs=[-0.5, -1.5]),)


@pytest.fixture(params=["memory", "s3"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[BlobStore]:
    if request.param == "memory":
        yield MemoryBlobStore()
        return
    settings: S3Settings = request.getfixturevalue("s3_settings")
    real = S3BlobStore(settings)
    await real.start()
    yield real
    await real.stop()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_policy(tmp_path / "base", seed=1)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    return make_policy(tmp_path / "trained", seed=2)


def facts(request: pytest.FixtureRequest, version: int) -> PolicyFacts:
    """Each test publishes a model of its own: the S3 bucket is shared by the module."""
    return PolicyFacts(model=f"m/{request.node.name}", version=version, created_at=NOW)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def test_what_is_published_comes_back_byte_for_byte(
    store: BlobStore, base: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    manifest = await upload(store, base, facts(request, 0))
    directory = await fetch(store, manifest, tmp_path / "cache")
    assert contents(directory) == contents(base)
    await verify(directory, manifest)
    assert not manifest.HasField("parent_version")


async def test_the_digest_names_the_files_and_nothing_else(
    store: BlobStore, base: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    first = await upload(store, base, facts(request, 0))
    again = await upload(MemoryBlobStore(), base, replace(facts(request, 9), model="other", step=3))
    assert first.digest == again.digest
    (base / "chat_template.jinja").write_text("changed")
    assert (await upload(MemoryBlobStore(), base, facts(request, 0))).digest != first.digest


def test_the_digest_is_that_of_sorted_lines() -> None:
    # printf 'a 1\nb 2\n' | sha256sum
    expected = "2951835de33689a441bfa61bc7af99b1f0305ca8ec0ab4dd508f14f57b27ca23"
    assert policy_digest({"b": "2", "a": "1"}) == expected


async def test_files_that_did_not_change_are_referenced_not_stored_again(
    store: BlobStore, base: Path, trained: Path, request: pytest.FixtureRequest
) -> None:
    parent = await upload(store, base, facts(request, 0))
    child = await upload(store, trained, replace(facts(request, 1), parent=parent, canary=CANARY))
    of_parent = {file.name: file.blob.key for file in parent.files}
    of_child = {file.name: file.blob.key for file in child.files}
    changed = {name for name in of_child if of_child[name] != of_parent[name]}
    assert changed == {"model.safetensors"}
    assert child.parent_version == 0


async def test_publishing_again_is_the_same_and_other_bytes_are_refused(
    store: BlobStore, base: Path, trained: Path, request: pytest.FixtureRequest
) -> None:
    first = await upload(store, base, facts(request, 0))
    later = replace(facts(request, 0), created_at=NOW.replace(hour=9), step=7)
    assert await upload(store, base, later) == first, "first writer wins"
    with pytest.raises(VersionTaken, match="versions are never reused"):
        await upload(store, trained, facts(request, 0))
    assert await load(store, first.model, 0) == first


async def test_racing_publishers_of_one_version_agree(
    store: BlobStore, base: Path, request: pytest.FixtureRequest
) -> None:
    wanted = [replace(facts(request, 0), step=step) for step in range(6)]
    published = await asyncio.gather(*(upload(store, base, one) for one in wanted))
    assert len({manifest_bytes(manifest) for manifest in published}) == 1


async def test_a_version_with_a_parent_needs_a_canary(
    store: BlobStore, base: Path, trained: Path, request: pytest.FixtureRequest
) -> None:
    parent = await upload(store, base, facts(request, 0))
    with pytest.raises(InvalidManifest, match="canary"):
        await upload(store, trained, replace(facts(request, 1), parent=parent))


async def test_the_reference_of_a_manifest_is_its_stored_bytes(
    store: BlobStore, base: Path, request: pytest.FixtureRequest
) -> None:
    manifest = await upload(store, base, facts(request, 0))
    assert manifest_from_bytes(await store.get(manifest_ref(manifest))) == manifest
    with pytest.raises(UnknownPolicy, match="v4"):
        await load(store, manifest.model, 4)


async def test_hurt_bytes_are_not_fetched(
    store: BlobStore, base: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    manifest = await upload(store, base, facts(request, 0))
    weights = next(file for file in manifest.files if file.name == "model.safetensors")
    data = bytearray((base / "model.safetensors").read_bytes())
    data[-1] ^= 1
    await store.put(weights.blob.key, bytes(data))
    with pytest.raises((CorruptBlob, CorruptPolicy)):
        await fetch(store, manifest, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "policies").glob("*"))
    await store.delete(weights.blob.key)
    with pytest.raises(MissingBlob):
        await fetch(store, manifest, tmp_path / "cache")


async def test_a_hurt_cache_mends_itself(base: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = MemoryBlobStore()
    manifest = await upload(store, base, facts(request, 0))
    directory = await fetch(store, manifest, tmp_path / "cache")
    victim = directory / "config.json"
    victim.unlink()
    victim.write_text("{}")
    (directory / "extra.bin").write_text("x")
    with pytest.raises(CorruptPolicy):
        await verify(directory, manifest)
    again = await fetch(store, manifest, tmp_path / "cache")
    await verify(again, manifest)


async def test_many_fetchers_share_one_cache(
    base: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = MemoryBlobStore()
    manifest = await upload(store, base, facts(request, 0))
    found = await asyncio.gather(*(fetch(store, manifest, tmp_path / "cache") for _ in range(8)))
    assert len(set(found)) == 1
    await verify(found[0], manifest)
    left = {path.name.rpartition("-")[0] for path in (tmp_path / "cache").rglob(".*")}
    assert left == {".in", ".lock"}, "locks, .in-use and .lock-…, are empty and at most 257"


async def test_pruning_keeps_what_is_asked_for(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = MemoryBlobStore()
    manifests = []
    for version in range(4):
        directory = make_policy(tmp_path / f"p{version}", seed=version)
        manifests.append(await upload(store, directory, facts(request, version)))
        await fetch(store, manifests[-1], tmp_path / "cache")
        await asyncio.sleep(0.02)
    removed = await prune(tmp_path / "cache", keep={manifests[0].digest}, newest=1)
    assert set(removed) == {manifests[1].digest, manifests[2].digest}
    kept = await fetch(store, manifests[0], tmp_path / "cache")
    await verify(kept, manifests[0])
    weights = {manifest.digest: _weights(manifest) for manifest in manifests}
    present = {path.name for path in (tmp_path / "cache" / "objects").iterdir()}
    assert weights[manifests[3].digest] in present
    assert weights[manifests[1].digest] not in present


async def test_pruning_removes_what_killed_fetches_left(tmp_path: Path) -> None:
    old, new = time.time() - 2 * 3600, time.time()
    left = []
    for name, at in (("objects/.fetch-a.1.partial", old), ("objects/.fetch-b.2.partial", new)):
        left.append(tmp_path / name)
        left[-1].parent.mkdir(exist_ok=True)
        left[-1].write_bytes(b"half")
        os.utime(left[-1], (at, at))
    for name, at in (("policies/.assemble-a", old), ("policies/.assemble-b", new)):
        left.append(tmp_path / name)
        left[-1].mkdir(parents=True)
        os.utime(left[-1], (at, at))
    await prune(tmp_path, keep=(), newest=4)
    kept = [path.name for path in left if path.exists()]
    assert kept == [".fetch-b.2.partial", ".assemble-b"], "one that is written now may be a fetch under way"


def _weights(manifest: PolicyManifest) -> str:
    return next(file.blob.sha256 for file in manifest.files if file.name == "model.safetensors")


async def test_directories_that_are_no_policies_are_refused(tmp_path: Path, base: Path) -> None:
    store, wanted = MemoryBlobStore(), PolicyFacts("m", 0, NOW)
    with pytest.raises(InvalidPolicyDir):
        await upload(store, tmp_path / "nowhere", wanted)
    weights = base / "model.safetensors"
    whole = weights.read_bytes()
    for hurt in (whole[:-8], whole[:4], b"\xff" * 64, whole + b"\0" * 8, b""):
        weights.write_bytes(hurt)
        with pytest.raises(InvalidPolicyDir, match="safetensors"):
            await upload(store, base, wanted)
    weights.write_bytes(whole)
    (base / "tokenizer.json").unlink()
    with pytest.raises(InvalidManifest, match=r"tokenizer\.json"):
        await upload(store, base, wanted)
    assert await store.read(policy_manifest("m", 0)) is None, "a refused policy leaves no version behind"


def _manifest() -> PolicyManifest:
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
    manifest = PolicyManifest(model="m", version=1, digest=policy_digest(dict.fromkeys(names, "0" * 64)))
    for name in names:
        manifest.files.add(name=name).blob.sha256 = "0" * 64
    return manifest


@pytest.mark.parametrize(
    "name", ["../up", "/etc/passwd", "a//b", "a/../b", "", "manifest.json", "a\\b", "a\0b"]
)
def test_manifests_with_unsafe_names_are_refused(name: str) -> None:
    manifest = _manifest()
    manifest.files.add(name=name)
    with pytest.raises(InvalidManifest):
        manifest_from_bytes(manifest_bytes(manifest))


def test_manifests_that_contradict_themselves_are_refused() -> None:
    assert manifest_from_bytes(manifest_bytes(_manifest())) == _manifest()
    wrong = _manifest()
    wrong.digest = "f" * 64
    twice = _manifest()
    twice.files.add().CopyFrom(twice.files[0])
    short = _manifest()
    short.canary.add(token_ids=[1, 2, 3], logprobs=[-1.0])
    positive = _manifest()
    positive.canary.add(token_ids=[1, 2], logprobs=[0.5])
    infinite = _manifest()
    infinite.canary.add(token_ids=[1, 2], logprobs=[float("-inf")])
    for bad in (wrong, twice, short, positive, infinite, PolicyManifest()):
        with pytest.raises(InvalidManifest):
            manifest_from_bytes(manifest_bytes(bad))
    for junk in (b"", b"{", b"[]", b'{"version": "x"}'):
        with pytest.raises(InvalidManifest):
            manifest_from_bytes(junk)


def test_manifests_only_grow() -> None:
    grown = manifest_bytes(_manifest())[:-1] + b',"field_of_the_future":1}'
    assert manifest_from_bytes(grown) == _manifest()


def test_blob_references_travel_unchanged() -> None:
    ref = manifest_ref(_manifest())
    assert ref == BlobRef(policy_manifest("m", 1), ref.sha256, len(manifest_bytes(_manifest())))
