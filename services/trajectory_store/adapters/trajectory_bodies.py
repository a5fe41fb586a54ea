"""Bodies from the object store, verified and decoded."""

import asyncio

from blob_store import BlobStore, CorruptBlob, MissingBlob
from trajectory_body import MalformedBody, unpack
from trajectory_store.domain.errors import BodyCorrupt, UnknownTrajectory
from trajectory_store.domain.ledger import Episode
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody


class TrajectoryBodies:
    """The body behind a row's reference."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

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
