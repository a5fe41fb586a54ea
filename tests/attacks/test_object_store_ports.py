"""SeaweedFS listens on more ports than the one of S3: none of them is a way around the keys."""

import io
import os
import subprocess
import urllib.error
import urllib.request

import grpc
import pytest
from tests.local_servers import S3Server
from tests.support import refused

from blob_store.client import make_client
from local_stack.s3 import weed_binary

KEY, CONTENT = "default/policies/incident/v00000003/manifest.json", b"weights" * 1000


@pytest.fixture
def kept(s3_server: S3Server) -> S3Server:
    """With an object."""
    client, pool = make_client(s3_server.settings)
    client.put_object(s3_server.settings.bucket, KEY, io.BytesIO(CONTENT), len(CONTENT))
    pool.clear()
    return s3_server


def status_of(port: int, method: str, path: str) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method, data=b"other")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def is_whole(server: S3Server) -> bool:
    client, pool = make_client(server.settings)
    try:
        return bool(client.get_object(server.settings.bucket, KEY).data == CONTENT)
    finally:
        pool.clear()


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
def test_the_filer_answers_no_http(kept: S3Server, method: str) -> None:
    for path in (
        f"/buckets/{kept.settings.bucket}/{KEY}",
        f"/buckets/{kept.settings.bucket}/?recursive=true",
    ):
        assert status_of(kept.ports.filer, method, path) == 404
        refused.note("requests to inner ports of the object store")
    assert is_whole(kept)


@pytest.mark.parametrize("order", ["/col/delete?collection={bucket}", "/vol/vacuum", "/dir/assign"])
def test_the_master_takes_no_orders(kept: S3Server, order: str) -> None:
    for method in ("GET", "POST"):
        assert status_of(kept.ports.master, method, order.format(bucket=kept.settings.bucket)) == 404
        refused.note("requests to inner ports of the object store")
    assert is_whole(kept)


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_volumes_neither_take_nor_remove_bytes(kept: S3Server, method: str) -> None:
    for volume in range(1, 8):
        assert status_of(kept.ports.volume, method, f"/{volume},01637037d6") in {400, 401, 404}
        refused.note("requests to inner ports of the object store")
    assert is_whole(kept)


@pytest.mark.parametrize("part", ["master", "filer", "volume", "s3", "admin"])
def test_no_part_speaks_grpc_with_a_stranger(kept: S3Server, part: str) -> None:
    channel = grpc.insecure_channel(f"127.0.0.1:{getattr(kept.ports, f'{part}_grpc')}")
    with pytest.raises(grpc.FutureTimeoutError):
        grpc.channel_ready_future(channel).result(timeout=2)
    channel.close()
    refused.note("requests to inner ports of the object store")


def test_the_shell_of_a_stranger_sees_nothing(kept: S3Server, tmp_path: object) -> None:
    ports = kept.ports
    argv = (
        weed_binary(), "shell", f"-master=127.0.0.1:{ports.master}.{ports.master_grpc}",
        f"-filer=127.0.0.1:{ports.filer}.{ports.filer_grpc}",
    )  # fmt: skip
    script = f"fs.ls /buckets/{kept.settings.bucket}\nfs.rm -rf /buckets/{kept.settings.bucket}\nexit\n"
    try:
        done = subprocess.run(
            argv, input=script, env={**os.environ, "HOME": str(tmp_path)}, cwd=str(tmp_path),
            capture_output=True, text=True, timeout=8, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        pass  # it tries to connect for as long as it is let
    else:
        assert "default" not in done.stdout
    assert is_whole(kept)
