"""Trajectories in the object store, put if absent: every sampler of an episode publishes the first body."""

import asyncio
import hashlib

from blob_store import BlobRef, BlobStore
from episodes import EpisodeBroken, EpisodeFailure, EpisodeIdentity
from identities import objects
from rollout_sampler.domain import Recorded
from trajectory_body import MalformedBody, pack, unpack
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody
from upcycle.errors import Unavailable


class StoredTrajectories:
    """One body per episode."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    async def find_stored(self, identity: EpisodeIdentity) -> Recorded | None:
        """The stored trajectory of an episode, or None. Raises Unavailable, EpisodeBroken."""
        key = _key_of(identity)
        data = await self._store.read(key)
        return None if data is None else await asyncio.to_thread(_decoded, identity, key, data)

    async def store_first(self, identity: EpisodeIdentity, body: TrajectoryBody) -> Recorded:
        """Store the body unless another sampler was faster; returns what is stored. Raises Unavailable."""
        key = _key_of(identity)
        ref = await self._store.put_if_absent(key, pack(body))
        if ref is not None:
            return Recorded(body, ref)
        stored = await self.find_stored(identity)
        if stored is None:
            raise Unavailable(f"the object store to agree with itself on {key}")
        return stored


def _key_of(identity: EpisodeIdentity) -> str:
    return objects.trajectory_body(identity.run_id, identity.episode_id, identity.tenant)


def _decoded(identity: EpisodeIdentity, key: str, data: bytes) -> Recorded:
    try:
        body = unpack(data)
    except MalformedBody as error:
        raise EpisodeBroken(EpisodeFailure.BODY_CORRUPT, f"{key}: {error}") from error
    if body.episode.episode_id != identity.episode_id:
        raise EpisodeBroken(EpisodeFailure.BODY_CORRUPT, f"{key} holds episode {body.episode.episode_id!r}")
    return Recorded(body, BlobRef(key, hashlib.sha256(data).hexdigest(), len(data)))
