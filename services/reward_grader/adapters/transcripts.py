"""Records from the object store, verified."""

from typing import Final

from blob_store import BlobError, BlobRef, BlobStore, CorruptBlob, MissingBlob
from reward_grader import wire
from reward_grader.domain import FailureKind, GradingTask, Transcript
from reward_grader.ports import EpisodeBroken, Unavailable
from trajectory_body import MalformedBody, unpack
from upcycle.errors import Unavailable as StoreAway

_AWAY_DELAY_S: Final = 2.0


class BlobTranscripts:
    """Implements ports.Transcripts."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    async def read(self, task: GradingTask) -> Transcript:
        """The record behind the claim check."""
        ref = BlobRef(task.body.key, task.body.sha256, task.body.size_bytes)
        try:
            body = unpack(await self._store.get(ref))
        except (CorruptBlob, MissingBlob, MalformedBody) as error:
            raise EpisodeBroken(FailureKind.BODY_CORRUPT, str(error)) from error
        except (BlobError, StoreAway) as error:
            raise Unavailable(f"the object store ({type(error).__name__})", _AWAY_DELAY_S) from error
        if body.trajectory_id != task.trajectory_id:
            detail = f"{ref.key} holds trajectory {body.trajectory_id!r}, not {task.trajectory_id!r}"
            raise EpisodeBroken(FailureKind.BODY_CORRUPT, detail)
        return wire.transcript_from_body(body)
