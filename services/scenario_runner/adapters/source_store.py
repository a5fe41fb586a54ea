"""Sources of environments in the object store, by their digest: packed at submit, read when another source
lies where the environment was. What is read is checked against its digest before a byte of it is laid down.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from blob_store import BlobError, BlobStore
from identities import objects
from scenario_runner.domain.environments import EnvironmentBroken
from service_kit.clock import utc_now
from upcycle.environment.source_files import SourceFiles
from upcycle.environment.source_pack import pack_source, unpack_source
from upcycle.errors import SourceRefused, Unavailable

_NOWHERE: Final = Path("/")


_YOUNG: Final = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class OldSource:
    """A kept source that may be removed, if nothing refers to it."""

    digest: str
    written_at: datetime
    size_bytes: int


class SourceStore:
    """Keeps each source once."""

    def __init__(self, store: BlobStore, *, now: Callable[[], datetime] = utc_now) -> None:
        self._store = store
        self._now = now
        self._kept: set[str] = set()

    async def keep(self, files: SourceFiles) -> None:
        """Kept for a day at least from now on, whatever retention removes. Raises Unavailable."""
        key = objects.packed_source(files.digest)
        try:
            if files.digest in self._kept and await self._is_young(key):
                return
            packed = await asyncio.to_thread(pack_source, files)
            is_other = await self._store.put_if_absent(key, packed) is None
            # The same files may compress to other bytes; bytes that are no such source are replaced.
            held = await self._store.read(key) if is_other else packed
            is_none = is_other and await asyncio.to_thread(_digest_of, held) != files.digest
            if is_none or not await self._is_young(key):
                await self._store.put(key, packed)
        except BlobError as error:
            raise Unavailable(f"the object store: {error}") from error
        self._kept.add(files.digest)

    async def _is_young(self, key: str) -> bool:
        """Whether retention, which removes nothing younger than a day, leaves it alone for a while."""
        found = await self._store.stat(key)
        return found is not None and self._now() - found.written_at < _YOUNG

    async def old(self, after: str, before: datetime, limit: int) -> tuple[list[OldSource], str]:
        """The next kept sources in the order of their digests, those alone that were written before a moment;
        and the digest where the next batch begins, "" at the end. Raises Unavailable."""
        try:
            prefix = objects.packed_sources()
            digests = [
                key.removeprefix(prefix).removesuffix(".zip") for key in await self._store.list(prefix)
            ]
            batch = [digest for digest in digests if digest > after][:limit]
            stats = [(digest, await self._store.stat(objects.packed_source(digest))) for digest in batch]
        except BlobError as error:
            raise Unavailable(f"the object store: {error}") from error
        found = [
            OldSource(digest, stat.written_at, stat.size_bytes)
            for digest, stat in stats
            if stat is not None and stat.written_at < before
        ]
        return found, batch[-1] if len(batch) == limit else ""

    async def remove(self, digest: str) -> None:
        """Raises Unavailable."""
        self._kept.discard(digest)
        try:
            await self._store.delete(objects.packed_source(digest))
        except BlobError as error:
            raise Unavailable(f"the object store: {error}") from error

    async def packed(self, digest: str) -> bytes | None:
        """As it is kept, unchecked; None for one that was never kept, or is no longer. Raises Unavailable."""
        try:
            return await self._store.read(objects.packed_source(digest))
        except BlobError as error:
            raise Unavailable(f"the object store: {error}") from error

    async def find(self, digest: str) -> SourceFiles | None:
        """None for one that was never kept. Raises EnvironmentBroken for other content, Unavailable."""
        packed = await self.packed(digest)
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
