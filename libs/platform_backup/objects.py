"""The bucket as files: the content of each object under its digest, and an index of the keys."""

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final, TypeVar

from blob_store.provision import RESTORE_MARKER
from blob_store.s3 import S3BlobStore
from platform_backup.manifest import INDEX, OBJECTS, StoredObject, objects_of
from service_kit.groups import S3Settings

T = TypeVar("T")
U = TypeVar("U")
_PROBES: Final = frozenset({".ready"})
"""Keys by which servers are asked whether they take writes."""
_AT_ONCE: Final = 16


@asynccontextmanager
async def opened(settings: S3Settings) -> AsyncIterator[S3BlobStore]:
    """The bucket. Raises Unavailable, BucketMissing."""
    store = S3BlobStore(settings, max_connections=_AT_ONCE)
    try:
        await store.start()
        yield store
    finally:
        await store.stop()


async def keys_in(store: S3BlobStore) -> list[str]:
    """Every key that belongs to the platform."""
    return [key for key in await store.list("") if key != RESTORE_MARKER and key not in _PROBES]


async def save(store: S3BlobStore, folder: Path) -> list[StoredObject]:
    """Write every object below `folder`, and the index."""
    partials = folder / OBJECTS / "partial"
    partials.mkdir(parents=True, exist_ok=True)

    async def one(key: str) -> StoredObject:
        partial = partials / hashlib.sha256(key.encode()).hexdigest()
        ref = await store.copy_to(key, partial)
        stored = StoredObject(key, ref.sha256, ref.size_bytes)
        target = stored.path_in(folder)
        target.parent.mkdir(exist_ok=True)
        partial.replace(target)
        return stored

    found = await _each(await keys_in(store), one)
    partials.rmdir()
    with (folder / INDEX).open("w") as index:
        index.writelines(json.dumps(asdict(stored)) + "\n" for stored in found)
        index.flush()
        os.fsync(index.fileno())
    return found


async def load(store: S3BlobStore, folder: Path) -> None:
    """Put every object of a verified backup under its key."""

    async def one(stored: StoredObject) -> None:
        await store.put_file(stored.key, stored.path_in(folder), sha256=stored.sha256)

    await _each(objects_of(folder), one)


async def _each(items: Iterable[U], work: Callable[[U], Awaitable[T]]) -> list[T]:
    """Results in the order of the items; a few at once, the first error ends all."""
    results: dict[int, T] = {}
    numbered = enumerate(items)

    async def worker() -> None:
        for number, item in numbered:
            results[number] = await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(worker(), name="object")
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [results[number] for number in sorted(results)]
