"""Transcripts of stored trajectories, read for grading."""

import asyncio
from typing import Final

from blob_store import BlobError, BlobRef, BlobStore, CorruptBlob, MissingBlob
from scenario_runner.domain.environments import BodyUnreadable, ScenarioTranscript
from scenario_runner.wire.environments import transcript_from_body
from trajectory_body import MalformedBody, unpack
from upcycle.errors import Unavailable

MAX_STORED_BYTES: Final = 32 * 1024 * 1024
MAX_READS_AT_ONCE: Final = 8


class ScenarioTranscripts:
    """Reads bodies that the sampler stored: of bounded size, and a bounded number at once."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._reads = asyncio.Semaphore(MAX_READS_AT_ONCE)

    async def read(self, body: BlobRef) -> ScenarioTranscript:
        """Raises BodyUnreadable (missing, too large, other bytes, no trajectory), and Unavailable."""
        if body.size_bytes > MAX_STORED_BYTES:
            raise BodyUnreadable(
                f"trajectory body {body.key} has {body.size_bytes} bytes, limit {MAX_STORED_BYTES}; "
                "it cannot be graded"
            )
        async with self._reads:
            try:
                return await asyncio.to_thread(_decode, await self._store.get(body))
            except (MissingBlob, CorruptBlob, MalformedBody, ValueError) as error:
                raise BodyUnreadable(f"trajectory body {body.key!r}: {error}") from error
            except BlobError as error:
                raise Unavailable(f"the object store: {error}") from error


def _decode(data: bytes) -> ScenarioTranscript:
    return transcript_from_body(unpack(data))
