"""Transcripts for extra graders, from the stored bodies. Without extra graders no body is read here."""

import asyncio

from blob_store import BlobStore, CorruptBlob, MissingBlob
from episodes import EpisodeBroken, EpisodeFailure
from reward_grader import wire
from reward_grader.domain import GraderTranscript, GradingTask
from trajectory_body import MalformedBody, unpack


class GraderTranscripts:
    """The verified conversation of a recorded trajectory."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    async def read_body(self, task: GradingTask) -> GraderTranscript:
        """Raises EpisodeBroken(body_corrupt), Unavailable."""
        try:
            body = await asyncio.to_thread(unpack, await self._store.get(task.body))
        except (CorruptBlob, MissingBlob, MalformedBody) as error:
            raise EpisodeBroken(EpisodeFailure.BODY_CORRUPT, str(error)) from error
        expected, found = task.identity.trajectory_id, body.episode.trajectory_id
        if found != expected:
            raise EpisodeBroken(
                EpisodeFailure.BODY_CORRUPT, f"{task.body.key} holds trajectory {found!r}, not {expected!r}"
            )
        return wire.transcript_from_body(body)
