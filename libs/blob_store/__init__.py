"""Bodies and weights by key: bytes in, a reference with digest out, verified on the way back."""

from blob_store.errors import (
    BlobError,
    BucketMissing,
    CorruptBlob,
    MissingBlob,
    StoreDenied,
    UnknownStoreError,
)
from blob_store.memory import MemoryBlobStore
from blob_store.port import BlobStore
from blob_store.ref import BlobRef, BlobStat, ref_of_bytes, ref_of_file
from blob_store.s3 import S3BlobStore

__all__ = [
    "BlobError",
    "BlobRef",
    "BlobStat",
    "BlobStore",
    "BucketMissing",
    "CorruptBlob",
    "MemoryBlobStore",
    "MissingBlob",
    "S3BlobStore",
    "StoreDenied",
    "UnknownStoreError",
    "ref_of_bytes",
    "ref_of_file",
]
