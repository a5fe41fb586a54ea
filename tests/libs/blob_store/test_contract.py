"""One suite for every BlobStore: the fake earns its trust by passing the real one's tests."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from blob_store import (
    BlobRef,
    BlobStore,
    CorruptBlob,
    MemoryBlobStore,
    MissingBlob,
    S3BlobStore,
    ref_of_bytes,
)
from service_kit.groups import S3Settings

WRITERS = 16
SIX_MB = 6 * 1024 * 1024


@pytest.fixture(params=["memory", "s3"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[BlobStore]:
    if request.param == "memory":
        yield MemoryBlobStore()
        return
    settings: S3Settings = request.getfixturevalue("s3_settings")
    s3 = S3BlobStore(settings)
    await s3.start()
    yield s3
    await s3.stop()


async def test_what_was_put_comes_back_with_its_digest(store: BlobStore) -> None:
    ref = await store.put("trajectories/run-1/e1.pb.zst", b"turns")

    assert ref == BlobRef("trajectories/run-1/e1.pb.zst", hashlib.sha256(b"turns").hexdigest(), 5)
    assert await store.get(ref) == b"turns"
    assert await store.read(ref.key) == b"turns"


async def test_an_empty_body_is_a_body(store: BlobStore) -> None:
    ref = await store.put("empty", b"")

    assert await store.get(ref) == b""
    assert await store.put_if_absent("empty", b"x") is None


async def test_put_replaces_and_the_older_reference_no_longer_verifies(store: BlobStore) -> None:
    older = await store.put("pointer", b"one")
    newer = await store.put("pointer", b"two")

    assert await store.get(newer) == b"two"
    with pytest.raises(CorruptBlob, match="pointer: expected 3 bytes"):
        await store.get(older)


async def test_missing_is_said_as_missing(store: BlobStore) -> None:
    with pytest.raises(MissingBlob, match="never/there"):
        await store.get(BlobRef("never/there", "0" * 64, 1))
    assert await store.read("never/there") is None
    assert await store.stat("never/there") is None
    await store.delete("never/there")


async def test_a_key_says_how_much_it_holds_and_when_it_was_written_last(store: BlobStore) -> None:
    before = datetime.now(UTC) - timedelta(minutes=5)  # S3 counts whole seconds, on a clock of its own
    await store.put("dated", b"four")
    first = await store.stat("dated")
    assert first is not None
    assert first.size_bytes == 4
    assert before < first.written_at < datetime.now(UTC) + timedelta(minutes=5)
    assert await store.put_if_absent("dated", b"other") is None
    assert await store.stat("dated") == first
    await store.put("dated", b"sixsix")
    again = await store.stat("dated")
    assert again is not None
    assert (again.size_bytes, again.written_at >= first.written_at) == (6, True)


async def test_put_if_absent_refuses_other_bytes_and_accepts_its_own_again(store: BlobStore) -> None:
    first = await store.put_if_absent("once", b"mine")

    assert first is not None
    assert await store.put_if_absent("once", b"mine") == first
    assert await store.put_if_absent("once", b"other") is None
    assert await store.get(first) == b"mine"


@pytest.mark.parametrize("round_", range(5))
async def test_of_sixteen_racing_writers_exactly_one_wins(store: BlobStore, round_: int) -> None:
    bodies = [f"writer {i} ".encode() * 300 for i in range(WRITERS)]

    refs = await asyncio.gather(*(store.put_if_absent(f"race/{round_}", body) for body in bodies))

    won = [(ref, body) for ref, body in zip(refs, bodies, strict=True) if ref is not None]
    assert len(won) == 1
    ref, body = won[0]
    assert await store.get(ref) == body


async def test_racing_writers_of_a_large_body_leave_one_whole_body(store: BlobStore) -> None:
    bodies = [bytes([i]) * SIX_MB for i in range(4)]

    refs = await asyncio.gather(*(store.put_if_absent("race/large", body) for body in bodies))

    won = [ref for ref in refs if ref is not None]
    assert len(won) == 1
    await store.get(won[0])


async def test_a_file_goes_and_comes_whole(store: BlobStore, tmp_path: Path) -> None:
    source, target = tmp_path / "model.safetensors", tmp_path / "fetched"
    source.write_bytes(os.urandom(SIX_MB))

    ref = await store.put_file("policy/incident/v00000001/model.safetensors", source)
    await store.get_file(ref, target)

    assert ref.size_bytes == SIX_MB
    assert target.read_bytes() == source.read_bytes()


async def test_a_file_of_many_parts_keeps_its_digest(store: BlobStore, tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.write_bytes(os.urandom(1024) * 40 * 1024)  # 40 MiB: three parts of 16 MiB

    ref = await store.put_file("parts", source)

    assert await store.get(ref) == source.read_bytes()


async def test_a_digest_that_the_caller_knows_is_taken_and_checked_when_read(
    store: BlobStore, tmp_path: Path
) -> None:
    source = tmp_path / "weights"
    source.write_bytes(b"weights")
    sha256 = hashlib.sha256(b"weights").hexdigest()

    ref = await store.put_file("known", source, sha256=sha256)
    wrong = await store.put_file("known", source, sha256=hashlib.sha256(b"others").hexdigest())

    assert ref == ref_of_bytes("known", b"weights")
    assert await store.get(ref) == b"weights"
    with pytest.raises(CorruptBlob, match="known"):
        await store.get(wrong)


async def test_a_corrupt_body_never_reaches_its_target_path(store: BlobStore, tmp_path: Path) -> None:
    ref = await store.put("weights", b"good weights")
    await store.put("weights", b"evil weights")

    with pytest.raises(CorruptBlob, match="weights"):
        await store.get_file(ref, tmp_path / "weights")
    assert os.listdir(tmp_path) == []


async def test_list_shows_keys_under_a_prefix_in_order(store: BlobStore) -> None:
    for key in ("list/b", "list/a/2", "list/a/1", "listed"):
        await store.put(key, b"x")

    assert await store.list("list/") == ("list/a/1", "list/a/2", "list/b")
    await store.delete("list/a/1")
    assert await store.list("list/a/") == ("list/a/2",)
    assert await store.list("nothing/") == ()


@pytest.mark.parametrize("key", ["", "/rooted", "a//b", "a/../b", "tail/", "k" * 1025])
async def test_a_key_that_could_leave_its_prefix_is_refused(store: BlobStore, key: str) -> None:
    with pytest.raises(ValueError, match="blob key"):
        await store.put(key, b"x")
    # A hostile event may name it: a reader treats it as bytes that are not there.
    with pytest.raises(MissingBlob, match="blob key"):
        await store.get(BlobRef(key, "0" * 64, 1))


async def test_unusual_but_legal_keys_work(store: BlobStore) -> None:
    key = "tasks/résumé @v1 +100%/x=y&z.json"

    ref = await store.put(key, b"x")

    assert await store.get(ref) == b"x"
    assert await store.list("tasks/") == (key,)
