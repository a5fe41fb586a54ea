"""Sources of environments in the object store, by their digest: packed at submit, read when another source
lies where the environment was. What is read is checked against its digest before a byte of it is laid down.
"""

import asyncio
from pathlib import Path
from typing import Final

from blob_store import BlobError, BlobStore
from identities import objects
from scenario_runner.domain.environments import EnvironmentBroken
from upcycle.environment.source_files import SourceFiles
from upcycle.environment.source_pack import pack_source, unpack_source
from upcycle.errors import SourceRefused, Unavailable

_NOWHERE: Final = Path("/")


class SourceStore:
    """Keeps each source once."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._kept: set[str] = set()

    async def keep(self, files: SourceFiles) -> None:
        """Raises Unavailable."""
        if files.digest in self._kept:
            return
        packed = await asyncio.to_thread(pack_source, files)
        key = objects.packed_source(files.digest)
        try:
            is_other = await self._store.put_if_absent(key, packed) is None
            # The same files may compress to other bytes; bytes that are no such source are replaced.
            if is_other and await asyncio.to_thread(_digest_of, await self._store.read(key)) != files.digest:
                await self._store.put(key, packed)
        except BlobError as error:
            raise Unavailable(f"the object store: {error}") from error
        self._kept.add(files.digest)

    async def find(self, digest: str) -> SourceFiles | None:
        """None for one that was never kept. Raises EnvironmentBroken for other content, Unavailable."""
        try:
            packed = await self._store.read(objects.packed_source(digest))
        except BlobError as error:
            raise Unavailable(f"the object store: {error}") from error
        if packed is None:
            return None
        try:
            files = await asyncio.to_thread(unpack_source, packed, _NOWHERE)
        except SourceRefused as error:
            raise EnvironmentBroken(f"source {digest[:12]}: {error}") from error
        if files.digest != digest:
            raise EnvironmentBroken(f"what is kept as source {digest[:12]} is source {files.digest[:12]}")
        return files


def _digest_of(packed: bytes | None) -> str:
    try:
        return unpack_source(packed or b"", _NOWHERE).digest
    except SourceRefused:
        return ""
