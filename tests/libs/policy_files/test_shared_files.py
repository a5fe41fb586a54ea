"""Caches of one host that share files: each comes once, and stays while any cache needs it."""

import asyncio
import fcntl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.services.policy_engine.policies import make_policy

from blob_store import BlobRef, MemoryBlobStore
from policy_files import PolicyFacts, cache, fetch, prune, upload, verify
from upcycle.api.training.v1.training_pb2 import PolicyManifest

ENGINES = 8
NOW = datetime(2026, 11, 30, 8, 0, tzinfo=UTC)


class CountingStore(MemoryBlobStore):
    """Writes down which objects were fetched as files; a fetch waits for `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.go = asyncio.Event()
        self.go.set()

    async def get_file(self, ref: BlobRef, path: Path) -> None:
        self.fetched.append(ref.key)
        await self.go.wait()
        await super().get_file(ref, path)


async def published(store: MemoryBlobStore, folder: Path, version: int) -> PolicyManifest:
    directory = make_policy(folder / f"v{version}", seed=version)
    return await upload(store, directory, PolicyFacts(f"m{version}", 0, NOW))


async def test_engines_that_ask_at_the_same_time_fetch_each_file_once(tmp_path: Path) -> None:
    store, objects = CountingStore(), tmp_path / "objects"
    manifest = await published(store, tmp_path, 0)
    async with asyncio.TaskGroup() as engines:
        found = [
            engines.create_task(fetch(store, manifest, tmp_path / f"engine-{number}", objects=objects))
            for number in range(ENGINES)
        ]
    assert sorted(store.fetched) == sorted({file.blob.key for file in manifest.files})
    for directory in {task.result() for task in found}:
        await verify(directory, manifest)
    assert len({task.result() for task in found}) == ENGINES


async def test_a_file_stays_while_any_cache_needs_it(tmp_path: Path) -> None:
    store, objects = CountingStore(), tmp_path / "objects"
    first, second = await published(store, tmp_path, 0), await published(store, tmp_path, 1)
    for engine, manifest in (("a", first), ("a", second), ("b", first)):
        await fetch(store, manifest, tmp_path / engine, objects=objects)
    assert await prune(tmp_path / "a", keep=(), newest=0, objects=objects)
    kept = await fetch(store, first, tmp_path / "b", objects=objects)
    await verify(kept, first)
    present = {path.name for path in objects.iterdir() if not path.name.startswith(".")}
    assert present == {file.blob.sha256 for file in first.files}, "those of the second alone are gone"
    await prune(tmp_path / "b", keep=(), newest=0, objects=objects)
    assert not [path for path in objects.iterdir() if not path.name.startswith(".")]


async def test_nothing_is_pruned_from_under_a_fetch(tmp_path: Path) -> None:
    store, objects = CountingStore(), tmp_path / "objects"
    manifest = await published(store, tmp_path, 0)
    arrived = objects / manifest.files[0].blob.sha256
    store.go.clear()
    fetching = asyncio.create_task(fetch(store, manifest, tmp_path / "a", objects=objects))
    while not store.fetched:
        await asyncio.sleep(0.01)
    arrived.write_bytes(b"of another cache, not linked to yet")
    await prune(tmp_path / "b", keep=(), newest=0, objects=objects)
    assert arrived.exists()
    store.go.set()
    await verify(await fetching, manifest)


async def test_a_process_that_stands_still_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_FETCHED_BY_ANOTHER_S", 0.05)
    store, objects = CountingStore(), tmp_path / "objects"
    manifest = await published(store, tmp_path, 0)
    objects.mkdir()
    held = [(objects / f".lock-{number:02x}").open("w") for number in range(256)]
    for file in held:
        fcntl.flock(file, fcntl.LOCK_EX)
    await verify(await fetch(store, manifest, tmp_path / "a", objects=objects), manifest)
    for file in held:
        file.close()
