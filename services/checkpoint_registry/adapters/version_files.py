"""Published versions in the object store: what is there, and how it goes.

A version's manifest goes first, so a version is whole or it is not there; then those of its files that no
other manifest names, of any model: forks and later versions name files of older ones.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

import policy_files
from blob_store import BlobError, BlobStore
from checkpoint_registry.domain.retention import StoredVersion
from identities import objects
from upcycle.errors import Unavailable
from upcycle.moments import moment_of

Folder = tuple[str, int]
"""Model and version."""


@dataclass(frozen=True, slots=True)
class _Read:
    version: StoredVersion
    names: frozenset[str]


class VersionFiles:
    """Lists and deletes. Raises Unavailable. Manifests never change, so each is read once, and kept for as
    long as it is listed: another replica may remove it."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._read: dict[str, _Read] = {}

    async def published(self) -> list[StoredVersion]:
        """Versions of every model whose files are in the object store."""
        try:
            folders = _by_folder(await self._store.list(objects.policies()))
            present = {key for keys in folders.values() for key in keys}
            self._read = {key: read for key, read in self._read.items() if key in present}
            return [await self._version(folder, keys) for folder, keys in folders.items()]
        except (BlobError, policy_files.InvalidManifest) as error:
            raise Unavailable(f"published versions cannot be read: {error}") from error

    async def remove(
        self, gone: Mapping[str, Collection[int]], *, may_go: Callable[[str, int], Awaitable[bool]]
    ) -> set[tuple[str, int]]:
        """Delete versions by model, except files that a version which stays names; returns what went.

        may_go: asked about each version right before its manifest goes; a version for which it returns False
        stays whole.
        """
        try:
            folders = _by_folder(await self._store.list(objects.policies()))
            doomed = [f for f in folders if f[1] in gone.get(f[0], ())]
            names = {f: await self._names(f, keys) for f, keys in folders.items()}
            return await self._remove(doomed, folders, names, may_go)
        except (BlobError, policy_files.InvalidManifest) as error:
            raise Unavailable(f"old versions cannot be removed: {error}") from error

    async def _remove(
        self,
        doomed: list[Folder],
        folders: Mapping[Folder, list[str]],
        names: Mapping[Folder, frozenset[str]],
        may_go: Callable[[str, int], Awaitable[bool]],
    ) -> set[Folder]:
        """All manifests first, so that it is known which files no manifest names any more."""
        hidden: set[Folder] = set()
        for folder in doomed:
            if await may_go(*folder):
                await self._delete(objects.policy_manifest(*folder), folders[folder])
                hidden.add(folder)
        kept = {key for folder, named in names.items() if folder not in hidden for key in named}
        for folder in hidden:
            for key in folders[folder]:
                if key not in kept and not key.endswith(f"/{objects.MANIFEST}"):
                    await self._delete(key, folders[folder])
        return hidden

    async def _delete(self, key: str, known: list[str]) -> None:
        if key in known:
            await self._store.delete(key)
            self._read.pop(key, None)

    async def _version(self, folder: tuple[str, int], keys: list[str]) -> StoredVersion:
        read = await self._manifest(folder, keys)
        return StoredVersion(*folder, None) if read is None else read.version

    async def _names(self, folder: tuple[str, int], keys: list[str]) -> frozenset[str]:
        """What a version that stays keeps: the files it names, or all it has where it has no manifest yet."""
        read = await self._manifest(folder, keys)
        return frozenset(keys) if read is None else read.names

    async def _manifest(self, folder: tuple[str, int], keys: list[str]) -> _Read | None:
        key = objects.policy_manifest(*folder)
        if key not in keys:
            return None
        if key not in self._read:
            data = await self._store.read(key)
            if data is None:
                return None
            manifest = policy_files.manifest_from_bytes(data)
            created_at = moment_of(manifest.created_at)
            version = StoredVersion(*folder, created_at, manifest.checkpoint_id)
            self._read[key] = _Read(version, frozenset(file.blob.key for file in manifest.files))
        return self._read[key]


def _by_folder(keys: Collection[str]) -> dict[tuple[str, int], list[str]]:
    """Keys by (model, version), in order."""
    folders: dict[tuple[str, int], list[str]] = {}
    for key in keys:
        if (folder := objects.parse_policy_version(key)) is not None:
            folders.setdefault(folder, []).append(key)
    return folders
