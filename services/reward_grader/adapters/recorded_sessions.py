"""Bodies of recorded sessions, found by the key that the gateway stored them under."""

import asyncio

from blob_store import BlobRef, BlobStore
from blob_store.ref import ref_of_bytes
from identities import objects
from identities.entities import recorded_episode_id, recorded_run_id
from reward_grader.domain import UnknownSession
from trajectory_body import MalformedBody, unpack
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody


class RecordedSessions:
    """What the gateway recorded. The key of a body holds its owner: another key's session is not found."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    async def read(self, session_id: str, key_id: str) -> tuple[TrajectoryBody, BlobRef]:
        """The body of a closed session. Raises UnknownSession, Unavailable."""
        episode_id = recorded_episode_id(session_id)
        key = objects.trajectory_body(recorded_run_id(key_id), episode_id)
        data = await self._store.read(key)
        if data is None:
            raise UnknownSession(session_id)
        try:
            body = await asyncio.to_thread(unpack, data)
        except MalformedBody as error:
            raise UnknownSession(session_id, f"its body cannot be read: {error}") from error
        return body, ref_of_bytes(key, data)
