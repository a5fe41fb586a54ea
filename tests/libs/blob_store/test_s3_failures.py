"""What happens to callers when the real store dies, fills up, or refuses."""

import asyncio
import itertools
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.local_servers import S3Server
from tests.support.waiting import until

from blob_store import BucketMissing, S3BlobStore, StoreDenied
from blob_store.provision import provision_bucket
from service_kit.errors import StoreFull
from service_kit.groups import S3Settings
from service_kit.ports import free_ports
from upcycle.errors import Unavailable


@pytest.mark.study
async def test_a_full_disk_and_an_absent_server_are_different_errors(tmp_path: Path) -> None:
    """Volumes of 1 MB, and few of them: to its clients the same as a disk without space."""
    with S3Server(tmp_path, extra_args=("-volume.max=2", "-master.volumeSizeLimitMB=1")) as server:
        store = S3BlobStore(server.settings, retry_s=5.0)
        kept = await store.put("before", b"before")

        with pytest.raises(StoreFull, match=r"put more/.*is its disk full"):
            await _put_until_refused(store)
        assert await store.get(kept) == b"before"
        await store.stop()


async def _put_until_refused(store: S3BlobStore) -> None:
    async with asyncio.timeout(60):
        for number in itertools.count():
            await store.put(f"more/{number}", b"x" * 500_000)
            await asyncio.sleep(0.1)  # the master learns of full volumes by heartbeat


async def test_an_absent_server_is_unavailable_after_the_budget() -> None:
    settings = S3Settings(endpoint=f"127.0.0.1:{free_ports(1)[0]}")
    store = S3BlobStore(settings, retry_s=0.5)

    with pytest.raises(Unavailable, match=r"store at 127.*; put k in bucket upcycle: .*gave up after 0.5 s"):
        await store.put("k", b"x")

    assert "refused" in str(store.ready())
    await store.stop()


async def test_a_wrong_secret_is_denied_without_a_retry(s3_settings: S3Settings) -> None:
    wrong = s3_settings.model_copy(update={"secret_key": SecretStr("wrong-secret")})
    store = S3BlobStore(wrong, retry_s=3600)

    with pytest.raises(StoreDenied, match="UPCYCLE_S3_SECRET_KEY"):
        async with asyncio.timeout(60):
            await store.put("k", b"x")

    await store.stop()


async def test_a_bucket_that_was_not_provisioned_stops_the_start(s3_settings: S3Settings) -> None:
    settings = s3_settings.model_copy(update={"bucket": "never-provisioned"})
    store = S3BlobStore(settings)

    with pytest.raises(BucketMissing, match=r"never-provisioned.*python -m blob_store.provision"):
        await store.start()
    with pytest.raises(BucketMissing):
        await store.put("k", b"x")

    assert provision_bucket(settings) is True
    assert provision_bucket(settings) is False
    await store.start()
    await store.stop()


async def test_readiness_returns_with_the_store_without_any_request(tmp_path: Path) -> None:
    with S3Server(tmp_path) as server:
        store = S3BlobStore(server.settings, retry_s=2.0)
        await store.start()
        assert store.ready() is None
        await asyncio.to_thread(server.kill)
        with pytest.raises(Unavailable):
            await store.put("k", b"x")
        assert store.ready() is not None

        await asyncio.to_thread(server.start)
        await until(lambda: store.ready() is None)
        await store.stop()
