"""What services need from an object store; `S3BlobStore` and `MemoryBlobStore` pass one contract suite."""

from pathlib import Path
from typing import Protocol

from blob_store.ref import BlobRef, BlobStat


class BlobStore(Protocol):
    """Keys are `/`-separated paths. Every method may raise Unavailable, StoreFull, StoreDenied."""

    async def put(self, key: str, data: bytes) -> BlobRef:
        """Write, replacing what was there. Durable when it returns."""

    async def put_if_absent(self, key: str, data: bytes) -> BlobRef | None:
        """Write unless the key holds something. None: other bytes are there. Equal bytes are our write."""

    async def put_file(self, key: str, path: Path, *, sha256: str | None = None) -> BlobRef:
        """Write the content of a file, replacing what was there; for large bodies, in parallel parts.

        sha256: of the content, from a caller who has read it already; it is not read once more to be hashed.
        """

    async def get(self, ref: BlobRef) -> bytes:
        """The bytes, verified. Raises MissingBlob, CorruptBlob."""

    async def get_file(self, ref: BlobRef, path: Path) -> None:
        """Write the verified bytes to `path`, which appears whole or not at all. Raises as `get`."""

    async def read(self, key: str) -> bytes | None:
        """The bytes under a key whose digest is not known, or None."""

    async def stat(self, key: str) -> BlobStat | None:
        """When a key was written last and how much it holds, or None."""

    async def list(self, prefix: str) -> tuple[str, ...]:
        """All keys that start with `prefix`, sorted."""

    async def delete(self, key: str) -> None:
        """Remove the key; it is fine if there is none."""
