"""A store in a dict, for unit tests; it passes the contract suite of the real one."""

import asyncio
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from blob_store.errors import MissingBlob
from blob_store.ref import BlobRef, BlobStat, check_key, ref_of_bytes


class MemoryBlobStore:
    """Bytes in memory; they are gone with the process."""

    def __init__(self) -> None:
        self.name = "memory-blobs"
        self.objects: dict[str, bytes] = {}
        self.written: dict[str, datetime] = {}

    async def put(self, key: str, data: bytes) -> BlobRef:
        """See BlobStore."""
        self.objects[check_key(key)] = bytes(data)
        self.written[key] = datetime.now(UTC)
        return ref_of_bytes(key, data)

    async def put_if_absent(self, key: str, data: bytes) -> BlobRef | None:
        """See BlobStore."""
        held = self.objects.setdefault(check_key(key), bytes(data))
        self.written.setdefault(key, datetime.now(UTC))
        return ref_of_bytes(key, data) if held == data else None

    async def put_file(self, key: str, path: Path, *, sha256: str | None = None) -> BlobRef:
        """See BlobStore."""
        ref = await self.put(key, await asyncio.to_thread(path.read_bytes))
        return ref if sha256 is None else replace(ref, sha256=sha256)

    async def get(self, ref: BlobRef) -> bytes:
        """See BlobStore."""
        data = await self.read(ref.key)
        if data is None:
            raise MissingBlob(f"{ref.key}: not in the store")
        return ref.verify(data)

    async def get_file(self, ref: BlobRef, path: Path) -> None:
        """See BlobStore."""
        data = await self.get(ref)
        partial = path.with_name(f"{path.name}.partial")
        await asyncio.to_thread(partial.write_bytes, data)
        os.replace(partial, path)

    async def read(self, key: str) -> bytes | None:
        """See BlobStore."""
        return self.objects.get(check_key(key))

    async def stat(self, key: str) -> BlobStat | None:
        """See BlobStore."""
        data = self.objects.get(check_key(key))
        if data is None:
            return None
        written = self.written.setdefault(key, datetime.now(UTC))  # a test may have put it into `objects`
        return BlobStat(written, len(data))

    async def list(self, prefix: str) -> tuple[str, ...]:
        """See BlobStore."""
        return tuple(sorted(key for key in self.objects if key.startswith(prefix)))

    async def delete(self, key: str) -> None:
        """See BlobStore."""
        self.objects.pop(check_key(key), None)
        self.written.pop(key, None)

    async def start(self) -> None:
        """Nothing to connect to."""

    async def stop(self) -> None:
        """Nothing to close."""

    def ready(self) -> str | None:
        """Always."""
        return None
