"""Trajectories of recorded sessions in the object store, written once each."""

import asyncio

from blob_store import BlobError, BlobRef, BlobStore
from blob_store.ref import ref_of_bytes
from identities import objects
from trajectory_body import pack
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody
from upcycle.errors import Unavailable


class SessionBodies:
    """One body per session."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    async def keep(self, body: TrajectoryBody) -> BlobRef:
        """Where it is stored. Equal calls make equal bytes, so replicas that close one session agree. Raises
        Unavailable."""
        key = objects.trajectory_body(body.episode.run_id, body.episode.episode_id)
        data = await asyncio.to_thread(pack, body)
        try:
            stored = await self._store.put_if_absent(key, data)
        except BlobError as error:
            raise Unavailable(f"the object store to take {key}: {error}") from error
        return stored or ref_of_bytes(key, data)
