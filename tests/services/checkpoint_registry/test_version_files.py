"""What the registry remembers of a published version ends with its files, whichever replica deleted them."""

from datetime import UTC, datetime
from pathlib import Path

from tests.services.policy_engine.policies import make_policy
from tests.support.keeping import num_kept

from blob_store import MemoryBlobStore
from checkpoint_registry.adapters.version_files import VersionFiles
from identities import objects
from identities.objects import PolicyFolder
from policy_files import PolicyFacts, upload

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


async def test_versions_that_another_replica_removed_are_forgotten(tmp_path: Path) -> None:
    store = MemoryBlobStore()
    files = VersionFiles(store)
    for version in range(4):
        directory = make_policy(tmp_path / f"v{version}", seed=version)
        await upload(store, directory, PolicyFacts("m", version, NOW))
    for one in await files.published():
        assert (await files.stored(PolicyFolder(one.model, one.version))).created_at == NOW
    for version in range(3):
        await store.delete(objects.policy_manifest("m", version))
    found = [one.version for one in await files.published() if one.is_whole]
    assert found == [3]
    assert num_kept(files) == 1
