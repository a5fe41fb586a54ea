"""Records in the object store, put if absent: the first writer wins, everybody announces what it wrote."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from blob_store import BlobError, BlobStore, CorruptBlob, MissingBlob
from rollout_sampler import wire
from rollout_sampler.domain import EpisodeTask, RecordedFacts, StoredBody, Trajectory
from rollout_sampler.ports import EpisodeBroken, Unavailable
from service_kit import StoreFull
from trajectory_body import MalformedBody, pack, unpack
from upcycle.errors import Unavailable as StoreAway

_AWAY_DELAY_S: Final = 2.0
_FULL_DELAY_S: Final = 10.0


@contextmanager
def store_errors() -> Iterator[None]:
    """Whatever keeps the store from answering is a named wait; what is wrong with bytes passes through."""
    try:
        yield
    except (CorruptBlob, MissingBlob):
        raise
    except StoreFull as error:
        raise Unavailable("space in the object store", _FULL_DELAY_S) from error
    except (BlobError, StoreAway) as error:
        raise Unavailable(f"the object store ({type(error).__name__})", _AWAY_DELAY_S) from error


class BlobBodies:
    """Implements ports.Bodies."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    async def find(self, task: EpisodeTask) -> RecordedFacts | None:
        """Facts of the stored record, or None."""
        with store_errors():
            data = await self._store.read(task.body_key)
        return None if data is None else _facts(task, data)

    async def keep(self, trajectory: Trajectory) -> RecordedFacts:
        """Store the record, or learn what is stored."""
        task = trajectory.task
        data = pack(wire.body_to_wire(trajectory))
        with store_errors():
            ref = await self._store.put_if_absent(task.body_key, data)
            held = None if ref is not None else await self._store.read(task.body_key)
        if ref is not None:
            stored = StoredBody(ref.key, ref.sha256, ref.size_bytes)
            return wire.facts_of_trajectory(trajectory, stored)
        if held is None:
            raise Unavailable(f"the object store to agree on {task.body_key}", _AWAY_DELAY_S)
        return _facts(task, held)


def _facts(task: EpisodeTask, data: bytes) -> RecordedFacts:
    try:
        body = unpack(data)
    except MalformedBody as error:
        raise EpisodeBroken("body_corrupt", f"{task.body_key}: {error}") from error
    if body.episode_id != task.episode_id:
        raise EpisodeBroken("body_corrupt", f"{task.body_key} holds episode {body.episode_id!r}")
    return wire.facts_of(body, task.body_key, data)
