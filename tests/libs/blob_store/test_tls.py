"""The object store over https, with an authority of its own."""

from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.local_servers import S3Server

from blob_store.s3 import S3BlobStore
from upcycle.errors import Unavailable


async def test_blobs_travel_over_https_and_only_to_a_store_of_the_authority(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    pair = ours.issue("s3")
    shown = ("-s3.cert.file", str(pair.certificate), "-s3.key.file", str(pair.key))
    server = S3Server(tmp_path / "s3", extra_args=shown)
    server.settings = server.settings.model_copy(update={"secure": True, "ca": ours.ca})
    async with server:
        store = S3BlobStore(server.settings)
        await store.start()
        try:
            ref = await store.put("a/b", b"weights")
            assert await store.get(ref) == b"weights"
        finally:
            await store.stop()
        for wrong in ({"ca": others.ca}, {"secure": False, "ca": None}):
            stranger = S3BlobStore(server.settings.model_copy(update=wrong), retry_s=0.5)
            with pytest.raises(Unavailable):
                await stranger.get(ref)
            await stranger.stop()
