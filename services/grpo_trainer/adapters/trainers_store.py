"""What trainer processes say of themselves, and the leases on models, in the object store.

A lease is an object that is written only if absent, under the next number of its model: one process gets it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict

from pydantic import TypeAdapter

from blob_store import BlobStore
from grpo_trainer.adapters.boundaries import object_store
from grpo_trainer.domain.trainers import Lease, Look, TrainerRecord
from identities import objects

_RECORDS = TypeAdapter(TrainerRecord)


class TrainersStore:
    """Reads and writes both. Every method raises Unavailable."""

    def __init__(self, store: BlobStore, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self._holders: dict[str, str] = {}

    async def look(self) -> Look:
        """All records, and the newest lease of every model."""
        at = self._monotonic()
        with object_store("the records of the trainers"):
            keys = await self._store.list(objects.trainers())
            leases = _newest_leases(keys)
            records, holders = await asyncio.gather(
                asyncio.gather(*map(self._record, filter(objects.parse_trainer_process, keys))),
                asyncio.gather(*(self._holder(model, token) for model, token in leases.items())),
            )
        self._holders = dict(holders)
        named = zip(leases.items(), holders, strict=True)
        return Look(
            at,
            {one.name: one for one in records if one is not None},
            {model: Lease(token, holder) for (model, token), (_, holder) in named},
        )

    async def _record(self, key: str) -> TrainerRecord | None:
        """None where it was deleted since, or another version of this program wrote it: then it is no trainer
        that we know, and its leases are free."""
        try:
            return _RECORDS.validate_json(await self._store.read(key) or b"")
        except ValueError:
            return None

    async def _holder(self, model: str, token: int) -> tuple[str, str]:
        """Key and holder of a lease; they never change, so they are read once. An empty one
        has no holder, and its token is not used again: a store may keep it of a trainer that was killed
        while it took the lease."""
        key = objects.trainer_lease(model, token)
        if key not in self._holders:
            data = await self._store.read(key)
            return key, str(json.loads(data)["holder"]) if data else ""
        return key, self._holders[key]

    async def write(self, record: TrainerRecord) -> None:
        """Replace the record of this process."""
        data = json.dumps(asdict(record)).encode()
        with object_store("the record of this trainer"):
            await self._store.put(objects.trainer_process(record.name), data)

    async def take(self, model: str, token: int, holder: str) -> bool:
        """Take the model with this token; False where another process did."""
        data = json.dumps({"holder": holder}).encode()
        with object_store(f"the lease of {model}"):
            return await self._store.put_if_absent(objects.trainer_lease(model, token), data) is not None

    async def forget(self, *, records: Iterable[str] = (), lease: tuple[str, int] | None = None) -> None:
        """Delete records of processes that are gone, and an old lease."""
        with object_store("old records of trainers"):
            for name in records:
                await self._store.delete(objects.trainer_process(name))
            if lease is not None:
                await self._store.delete(objects.trainer_lease(*lease))


def _newest_leases(keys: Iterable[str]) -> dict[str, int]:
    newest: dict[str, int] = {}
    for found in filter(None, map(objects.parse_trainer_lease, keys)):
        newest[found.model] = max(found.token, newest.get(found.model, 0))
    return newest
