"""What a killed S3 server may cost: a pause. One suite for each server that there is."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any, Protocol, Self

import pytest
from tests.local_servers import S3Server
from tests.support.waiting import until

from blob_store import BlobRef, S3BlobStore
from service_kit.groups import S3Settings


class S3Process(Protocol):
    """A server with a bucket that can be killed and started again on the same data and port."""

    settings: S3Settings

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: Any) -> None: ...


@pytest.fixture
def s3_process(tmp_path: Path) -> S3Process:
    """SeaweedFS; other folders have other servers. Not started."""
    return S3Server(tmp_path)


async def test_nothing_acknowledged_is_lost_when_the_server_is_killed(s3_process: S3Process) -> None:
    """Writers do not notice more than a pause; each acknowledged body is there afterwards, unharmed."""
    with s3_process as server:
        store = S3BlobStore(server.settings, retry_s=90.0)  # a busy machine is slow to start one
        acked: list[BlobRef] = []
        stop = asyncio.Event()
        writers = [asyncio.create_task(_write_until(stop, store, acked, worker)) for worker in range(4)]
        for kills in range(2):
            await until(lambda kills=kills: len(acked) > 20 * (kills + 1))  # type: ignore[misc]
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await until(lambda: len(acked) > 60)
        stop.set()
        await asyncio.gather(*writers)

        bodies = await asyncio.gather(*(store.get(ref) for ref in acked))
        await store.stop()

    assert len({ref.key for ref in acked}) == len(acked)
    assert [hashlib.sha256(body).hexdigest() for body in bodies] == [ref.sha256 for ref in acked]


async def _write_until(stop: asyncio.Event, store: S3BlobStore, acked: list[BlobRef], worker: int) -> None:
    number = 0
    while not stop.is_set():
        size_bytes = 2_000 if number % 8 else 1_500_000
        body = f"{worker}/{number} ".encode().ljust(size_bytes, b".")
        ref = await store.put_if_absent(f"kill/{worker}/{number}", body)
        assert ref is not None, f"kill/{worker}/{number} was stored by another writer"
        acked.append(ref)
        number += 1
