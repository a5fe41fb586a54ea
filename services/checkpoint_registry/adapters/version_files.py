"""Published versions in the object store: what is there, and how it goes.

A version's manifest goes first, so a version is whole or it is not there; then those of its files that no
other manifest names. A manifest names files of its own version and files that its parent named, an older
version of the model; version 0 of a fork names what a checkpoint of the origin names, and checkpoints stay.
So who else names a version's files is a later version of its model, and no other manifest is read.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import policy_files
from blob_store import BlobError, BlobStore
from checkpoint_registry.domain.retention import ListedVersion, StoredVersion
from identities import objects
from identities.objects import PolicyFolder
from upcycle.errors import Unavailable
from upcycle.moments import moment_of

_Keys = dict[PolicyFolder, list[str]]


@dataclass(frozen=True, slots=True)
class _Read:
    """borrowed: keys of older versions that the manifest names."""

    version: StoredVersion
    borrowed: frozenset[str]


class VersionFiles:
    """Lists and deletes. Raises Unavailable. A manifest is read when its version may go, or may share files
    with one that goes. Manifests never change, so each is read once, and kept for as long as it is listed:
    another replica may remove it."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._read: dict[PolicyFolder, _Read] = {}

    async def published(self) -> list[ListedVersion]:
        """Versions of every model whose files are in the object store; reads none of them."""
        try:
            folders = _by_folder(await self._store.list(objects.policies()))
        except BlobError as error:
            raise Unavailable(f"published versions cannot be listed: {error}") from error
        whole = {folder for folder, keys in folders.items() if objects.policy_manifest(*folder) in keys}
        self._read = {folder: read for folder, read in self._read.items() if folder in whole}
        return [ListedVersion(*folder, folder in whole) for folder in folders]

    async def stored(self, folder: PolicyFolder) -> StoredVersion:
        """What the manifest of a version says."""
        try:
            read = await self._manifest(folder)
        except (BlobError, policy_files.InvalidManifest) as error:
            raise Unavailable(f"published versions cannot be read: {error}") from error
        return StoredVersion(*folder, None) if read is None else read.version

    async def remove(
        self, gone: Mapping[str, Collection[int]], *, may_go: Callable[[PolicyFolder], Awaitable[bool]]
    ) -> set[PolicyFolder]:
        """Delete versions by model, except files that a version which stays names; returns what went.

        may_go: asked about each version right before its manifest goes; a version for which it returns False
        stays whole.
        """
        removed: set[PolicyFolder] = set()
        try:
            for model, versions in gone.items():
                keys = _by_folder(await self._store.list(objects.policy_versions(model)))
                doomed = [folder for folder in keys if folder.version in versions]
                later = [folder for folder in keys if folder.version >= min(versions)]
                borrowed = {folder: await self._borrowed(folder) for folder in later}
                removed |= await self._remove(doomed, keys, borrowed, may_go)
        except (BlobError, policy_files.InvalidManifest) as error:
            raise Unavailable(f"old versions cannot be removed: {error}") from error
        return removed

    async def _remove(
        self,
        doomed: Iterable[PolicyFolder],
        keys: _Keys,
        borrowed: Mapping[PolicyFolder, frozenset[str]],
        may_go: Callable[[PolicyFolder], Awaitable[bool]],
    ) -> set[PolicyFolder]:
        """All manifests first, so that it is known which files no manifest names any more."""
        hidden: set[PolicyFolder] = set()
        for folder in doomed:
            if await may_go(folder):
                if (manifest := objects.policy_manifest(*folder)) in keys[folder]:
                    await self._store.delete(manifest)
                self._read.pop(folder, None)
                hidden.add(folder)
        named = {key for folder, names in borrowed.items() if folder not in hidden for key in names}
        for folder in hidden:
            for key in keys[folder]:
                if key not in named and key != objects.policy_manifest(*folder):
                    await self._store.delete(key)
        return hidden

    async def _borrowed(self, folder: PolicyFolder) -> frozenset[str]:
        read = await self._manifest(folder)
        return frozenset() if read is None else read.borrowed

    async def _manifest(self, folder: PolicyFolder) -> _Read | None:
        """None: there is none."""
        if folder not in self._read:
            data = await self._store.read(objects.policy_manifest(*folder))
            if data is None:
                return None
            manifest = policy_files.manifest_from_bytes(data)
            stored = StoredVersion(*folder, moment_of(manifest.created_at), manifest.checkpoint_id)
            keys = (file.blob.key for file in manifest.files)
            borrowed = frozenset(key for key in keys if objects.parse_policy_version(key) != folder)
            self._read[folder] = _Read(stored, borrowed)
        return self._read[folder]


def _by_folder(keys: Collection[str]) -> _Keys:
    """Keys by (model, version), in order."""
    folders: _Keys = {}
    for key in keys:
        if (folder := objects.parse_policy_version(key)) is not None:
            folders.setdefault(folder, []).append(key)
    return folders
