"""What was published: a version that engines can load."""

from __future__ import annotations

from dataclasses import dataclass

from blob_store import BlobRef


@dataclass(frozen=True, slots=True)
class PublishedPolicy:
    """A version that engines can load."""

    version: int
    digest: str
    manifest: BlobRef
