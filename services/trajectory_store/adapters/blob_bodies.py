"""Bodies from the object store, verified and decoded."""

import asyncio
from typing import Final

from blob_store import BlobError, BlobRef, BlobStore, CorruptBlob, MissingBlob
from trajectory_body import MalformedBody, unpack
from trajectory_store.domain import Episode
from trajectory_store.ports import BodyCorrupt, Unavailable, UnknownTrajectory
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody
from upcycle.errors import Unavailable as StoreAway

_AWAY_DELAY_S: Final = 2.0


class BlobBodies:
    """Implements ports.Bodies."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    async def read(self, episode: Episode) -> TrajectoryBody:
        """The body behind the row's claim check."""
        episode_id, record = episode.identity.episode_id, episode.record
        if record is None:
            raise UnknownTrajectory(f"episode {episode_id!r} has no recorded trajectory yet")
        ref = BlobRef(record.body_key, record.body_sha256, record.body_size_bytes)
        try:
            body = await asyncio.to_thread(unpack, await self._store.get(ref))
        except (CorruptBlob, MissingBlob, MalformedBody) as error:
            raise BodyCorrupt(f"{type(error).__name__}: {error}") from error
        except (BlobError, StoreAway) as error:
            raise Unavailable(f"the object store ({type(error).__name__})", _AWAY_DELAY_S) from error
        if body.episode_id != episode_id:
            raise BodyCorrupt(f"{ref.key} holds episode {body.episode_id!r}, not {episode_id!r}")
        return body
