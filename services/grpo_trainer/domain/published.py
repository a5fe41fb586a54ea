"""What was published: a version that engines can load, and the ends of groups in the stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from blob_store import BlobRef


@dataclass(frozen=True, slots=True)
class PublishedPolicy:
    """A version that engines can load."""

    version: int
    digest: str
    manifest: BlobRef


@dataclass(frozen=True, slots=True)
class PublishedEndings:
    """outcomes: of the first group.settled per group. final_stop: the stream holds the final run.stopping."""

    outcomes: Mapping[str, str]
    final_stop: bool
