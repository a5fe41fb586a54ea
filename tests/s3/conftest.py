"""A second S3 server for the suites of blob_store: LocalBucket, folders and files behind S3's interface.

Unlike SeaweedFS it does not check who asks, so what is refused to strangers is not tried on it.
"""

import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.local_servers import LocalServer

from blob_store.provision import provision_bucket
from local_stack.s3 import S3ServerError, takes_a_write
from service_kit.groups import S3Settings
from service_kit.ports import LOOPBACK, free_ports

PROGRAM = shutil.which("localbucket", path=str(Path(sys.executable).parent))


class LocalBucketServer(LocalServer):
    """One LocalBucket process on the loopback, with a bucket."""

    name = "localbucket"
    error = S3ServerError
    ready_timeout_s = 30.0

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self._port = free_ports(1)[0]
        self.settings = S3Settings(endpoint=f"{LOOPBACK}:{self._port}", bucket="upcycle")

    def _command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        objects = str(self._data_dir / "objects")
        return (str(PROGRAM), objects, "--host", LOOPBACK, "--port", str(self._port)), {}

    def _await_ready(self, give_up_at: float) -> None:
        provision_bucket(self.settings, wait_s=max(give_up_at - time.monotonic(), 0.1))
        while not takes_a_write(self.settings):
            self._wait_a_little(give_up_at, "taking writes")


@pytest.fixture(scope="module")
def s3_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Settings]:
    """A bucket on a LocalBucket of its own."""
    with LocalBucketServer(tmp_path_factory.mktemp("localbucket")) as server:
        yield server.settings


@pytest.fixture
def s3_process(tmp_path: Path) -> LocalBucketServer:
    """A server to be killed. Not started."""
    return LocalBucketServer(tmp_path)
