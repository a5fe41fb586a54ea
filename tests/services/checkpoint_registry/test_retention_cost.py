"""A sweep of old versions costs what may go, not the checkpoints that stay for good."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.services.checkpoint_registry.conftest import MODEL, RegistryHarness, checkpoint
from tests.services.checkpoint_registry.running_registry import weights
from tests.services.checkpoint_registry.test_retention import Shelf, publish
from tests.services.test_restarts import fill

import policy_files
from blob_store import MemoryBlobStore
from checkpoint_registry.adapters import tables
from checkpoint_registry.adapters.rows import checkpoint_values
from identities.entities import checkpoint_id
from upcycle.api.training.v1.training_pb2 import PolicyManifest

NUM_OLD, NUM_NEWEST = 3, 4


class Counted:
    """A store that counts what is read out of it."""

    def __init__(self, inner: MemoryBlobStore) -> None:
        self._inner = inner
        self.read_keys: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read(self, key: str) -> bytes | None:
        self.read_keys.append(key)
        return await self._inner.read(key)


@contextmanager
def steps(raw: sqlite3.Connection) -> Iterator[list[int]]:
    """Of SQLite's machine, in tens."""
    count = [0]

    def step() -> int:
        count[0] += 1
        return 0

    raw.set_progress_handler(step, 10)
    yield count
    raw.set_progress_handler(None, 10)


async def connection_of(harness: RegistryHarness) -> sqlite3.Connection:
    raw = await harness.database.run(lambda connection: connection.connection.driver_connection)
    assert isinstance(raw, sqlite3.Connection)
    return raw


async def checkpoints(harness: RegistryHarness, store: MemoryBlobStore, base: PolicyManifest, n: int) -> None:
    """n of them in the tree, whose manifests name the files of version 0."""
    rows = []
    for version in range(1, n + 1):
        manifest = PolicyManifest()
        manifest.CopyFrom(base)
        manifest.version, manifest.parent_version = version, version - 1
        manifest.checkpoint_id = checkpoint_id(MODEL, version)
        ref = policy_files.manifest_ref(manifest)
        await store.put(ref.key, policy_files.manifest_bytes(manifest))
        rows.append(checkpoint_values(checkpoint(version, digest=base.digest)))
    await fill(harness.database, tables.checkpoint, rows)


async def sweeps(harness: RegistryHarness, folder: Path, n: int) -> tuple[int, int, int]:
    """Beside n checkpoints: manifests read by the sweep that finds and by the one that removes, and the
    database's steps of the latter."""
    inner = MemoryBlobStore()
    parent = await publish(inner, folder / "policy", 0, None)
    await checkpoints(harness, inner, parent, n)
    for version in range(n + 1, n + 1 + NUM_OLD + NUM_NEWEST):
        parent = await publish(inner, folder / "policy", version, parent)
    harness.clock.forward(timedelta(hours=2).total_seconds())
    store: Any = Counted(inner)
    prune = Shelf(harness, inner, folder, {}).pruner(store)
    assert await prune.sweep() == {}
    found = len(store.read_keys)
    with steps(await connection_of(harness)) as count:
        assert await prune.sweep() == {MODEL: list(range(n + 1, n + 1 + NUM_OLD))}
    return found, len(store.read_keys) - found, count[0]


@pytest.fixture
def sql_url(tmp_path: Path) -> str:
    """SQLite counts its steps."""
    return f"sqlite:///{tmp_path / 'test.sqlite'}"


@pytest.mark.parametrize("n", [10, 1_000])
async def test_a_sweep_reads_the_manifests_of_what_may_go_and_of_what_may_share_its_files(
    harness: RegistryHarness, tmp_path: Path, n: int
) -> None:
    found, removed, num_steps = await sweeps(harness, tmp_path, n)
    assert found == NUM_OLD
    assert removed == NUM_NEWEST
    assert num_steps < 150, "in tens: 3 versions are asked about, and their rows marked"


async def test_a_file_that_a_later_version_or_a_fork_names_stays_where_the_versions_between_go(
    harness: RegistryHarness, tmp_path: Path
) -> None:
    """Version 1 brings a new tokenizer, which 2 to 7 name; 2 is a checkpoint, and forked."""
    store, manifests = MemoryBlobStore(), {}
    parent = await publish(store, tmp_path / "base", 0, None)
    (tmp_path / "policy").mkdir()
    for version in range(1, 8):
        identity = checkpoint_id(MODEL, version) if version == 2 else ""
        parent = manifests[version] = await publish_with(
            store, tmp_path / "policy", version, parent, identity
        )
    await harness.save(2, digest=manifests[2].digest)
    forked = PolicyManifest()
    forked.CopyFrom(manifests[2])
    forked.model, forked.version = "forked", 0
    forked.ClearField("parent_version")
    await store.put(policy_files.manifest_ref(forked).key, policy_files.manifest_bytes(forked))
    harness.clock.forward(timedelta(hours=2).total_seconds())
    shelf = Shelf(harness, store, tmp_path, manifests)
    assert await shelf.prune() == {MODEL: [1, 3]}
    for number in (2, 4, 5, 6, 7):
        assert await shelf.whole(manifests[number], str(number)) == weights(number)
    assert await shelf.whole(forked, "forked") == weights(2)
    assert not [key for key in store.objects if "v00000003" in key]


async def publish_with(
    store: MemoryBlobStore, folder: Path, version: int, parent: PolicyManifest, identity: str
) -> PolicyManifest:
    """As `publish`, with a file that version 1 brought."""
    (folder / "special.json").write_text('{"brought": "by version 1"}')
    return await publish(store, folder, version, parent, identity)
