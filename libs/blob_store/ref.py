"""The claim check: what travels in events instead of bytes."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from blob_store.errors import CorruptBlob, InvalidKey
from upcycle.api.common.v1 import common_pb2

_CHUNK_BYTES: Final = 1024 * 1024
MAX_KEY_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class BlobStat:
    """What a store knows of a key without reading it. written_at: with a time zone."""

    written_at: datetime
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Where bytes lie and what they must be."""

    key: str
    sha256: str
    """Lower-case hex digest of the bytes."""
    size_bytes: int

    def verify(self, data: bytes) -> bytes:
        """Return `data` if it is what this reference promises. Raises CorruptBlob."""
        self._compare(ref_of_bytes(self.key, data))
        return data

    def verify_file(self, path: Path) -> None:
        """As `verify`, for the content of a file."""
        self._compare(ref_of_file(self.key, path))

    def _compare(self, found: "BlobRef") -> None:
        if found != self:
            raise CorruptBlob(
                f"{self.key}: expected {self.size_bytes} bytes with sha256 {self.sha256}, "
                f"found {found.size_bytes} bytes with sha256 {found.sha256}"
            )


def to_wire(ref: BlobRef) -> common_pb2.BlobRef:
    """The reference as events carry it."""
    return common_pb2.BlobRef(key=ref.key, sha256=ref.sha256, size_bytes=ref.size_bytes)


def from_wire(message: common_pb2.BlobRef) -> BlobRef:
    """What `to_wire` made."""
    return BlobRef(message.key, message.sha256, message.size_bytes)


def ref_of_bytes(key: str, data: bytes) -> BlobRef:
    """The reference that `data` has under `key`."""
    return BlobRef(key, hashlib.sha256(data).hexdigest(), len(data))


def ref_of_file(key: str, path: Path, sha256: str | None = None) -> BlobRef:
    """The reference that the content of `path` has under `key`; reads it in pieces, unless its sha256 is
    known."""
    if sha256 is not None:
        return BlobRef(key, sha256, path.stat().st_size)
    digest, size_bytes = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size_bytes += len(chunk)
    return BlobRef(key, digest.hexdigest(), size_bytes)


def check_key(key: str) -> str:
    """Return a key that every S3 accepts and that cannot climb out of a prefix. Raises InvalidKey."""
    parts = key.split("/")
    if not key or len(key.encode()) > MAX_KEY_BYTES or any(part in ("", ".", "..") for part in parts):
        raise InvalidKey(
            f"blob key {key[:80]!r} must be 1..{MAX_KEY_BYTES} bytes of non-empty parts separated by '/', "
            "none of them '.' or '..'"
        )
    return key
