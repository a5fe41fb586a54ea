"""What SeaweedFS keeps of a write that ends between the head and the body of its request, as where the writer
is killed there: nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blob_store import BlobRef, S3BlobStore, ref_of_bytes
from service_kit.groups import S3Settings
from service_kit.ports import LOOPBACK
from upcycle.errors import Unavailable

BODY = b"a body"
KEYS = {"put": "torn/put", "put_if_absent": "torn/if-absent", "put_file": "torn/file"}


@asynccontextmanager
async def cut_off(settings: S3Settings, times: int, retry_s: float) -> AsyncIterator[S3BlobStore]:
    """A store whose first `times` writes reach the server without their body."""
    left = times
    host, _, port = settings.endpoint.rpartition(":")

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        there, back = await asyncio.open_connection(host, int(port))
        head = await reader.readuntil(b"\r\n\r\n")
        back.write(head)
        await back.drain()
        if left and head.startswith(b"PUT "):
            left -= 1
            back.write_eof()
            await there.read()  # the server has done with it
        else:
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        back.close()
        writer.close()

    async with await asyncio.start_server(pass_on, LOOPBACK) as server:
        address = f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
        store = S3BlobStore(settings.model_copy(update={"endpoint": address}), retry_s=retry_s)
        try:
            yield store
        finally:
            await store.stop()
            server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(64 * 1024):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.fixture
async def whole(s3_settings: S3Settings) -> AsyncIterator[S3BlobStore]:
    """The way to the server that is not cut off."""
    store = S3BlobStore(s3_settings)
    yield store
    await store.stop()


async def write(store: S3BlobStore, how: str, key: str, folder: Path) -> BlobRef | None:
    if how == "put_file":
        (folder / "file").write_bytes(BODY)
        return await store.put_file(key, folder / "file")
    method: Callable[..., asyncio.Future[BlobRef | None]] = getattr(store, how)
    return await method(key, BODY)


@pytest.mark.parametrize("how", sorted(KEYS))
async def test_a_write_without_its_body_leaves_no_object(
    how: str, s3_settings: S3Settings, whole: S3BlobStore, tmp_path: Path
) -> None:
    async with cut_off(s3_settings, times=1, retry_s=0.0) as store:
        with pytest.raises(Unavailable):
            await write(store, how, KEYS[how], tmp_path)
    assert await whole.stat(KEYS[how]) is None
    assert await whole.put_if_absent(KEYS[how], b"of another writer") is not None


@pytest.mark.parametrize("how", ["put", "put_file"])
async def test_a_write_without_its_body_replaces_nothing(
    how: str, s3_settings: S3Settings, whole: S3BlobStore, tmp_path: Path
) -> None:
    before = await whole.put(f"{KEYS[how]}/held", b"what was there")
    async with cut_off(s3_settings, times=1, retry_s=0.0) as store:
        with pytest.raises(Unavailable):
            await write(store, how, before.key, tmp_path)
    assert await whole.get(before) == b"what was there"


async def test_a_writer_that_lives_is_the_first_though_its_request_was_cut_off(
    s3_settings: S3Settings, whole: S3BlobStore
) -> None:
    async with cut_off(s3_settings, times=2, retry_s=30.0) as store:
        ref = await store.put_if_absent("torn/again", BODY)
    assert ref == ref_of_bytes("torn/again", BODY)
    assert await whole.get(ref) == BODY
