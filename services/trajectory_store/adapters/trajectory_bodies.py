"""Bodies in the object store: read, verified and decoded; those of clients written."""

import asyncio

from blob_store import BlobStore, CorruptBlob, MissingBlob
from trajectory_body import MalformedBody, unpack
from trajectory_store.domain.errors import AlreadyImported, BodyCorrupt, UnknownTrajectory
from trajectory_store.domain.ledger import Episode
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody


class TrajectoryBodies:
    """The body that a row refers to."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    async def keep(self, episode: Episode, data: bytes) -> None:
        """Write a body where its row will say. Raises AlreadyImported where another one lies; Unavailable."""
        key = episode.record.body.key if episode.record else ""
        if await self._store.put_if_absent(key, data) is None:
            raise AlreadyImported(
                f"{key} holds another body: another import of the same trajectory came first; give the "
                "evaluation another run_id"
            )

    async def read_body(self, episode: Episode) -> TrajectoryBody:
        """Raises UnknownTrajectory, BodyCorrupt, Unavailable."""
        episode_id, record = episode.identity.episode_id, episode.record
        if record is None:
            raise UnknownTrajectory(f"episode {episode_id!r} has no recorded trajectory yet")
        try:
            body = await asyncio.to_thread(unpack, await self._store.get(record.body))
        except (CorruptBlob, MissingBlob, MalformedBody) as error:
            raise BodyCorrupt(f"{type(error).__name__}: {error}") from error
        if body.episode.episode_id != episode_id:
            raise BodyCorrupt(
                f"{record.body.key} holds episode {body.episode.episode_id!r}, not {episode_id!r}"
            )
        return body
