"""Servers in containers with the faces of the local ones, so that the same suites drive both. Need a
Docker engine.
"""

import time
import urllib.error
import urllib.request
from types import TracebackType
from typing import Any, Self

from testcontainers.core.container import DockerContainer

from blob_store.provision import provision_bucket
from local_stack.s3 import takes_a_write
from service_kit.groups import S3Settings
from service_kit.ports import free_ports

_READY_TIMEOUT_S = 60.0


class _InContainer:
    """A container from the first start to the end of `with`."""

    _container: DockerContainer

    def start(self) -> None:
        """Start (again) and wait until it answers."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._container.stop()


class NatsInContainer(_InContainer):
    """The official image on deploy/nats/nats.conf, with start, stop, kill and restart like local_stack's
    NatsServer.
    """

    def __init__(self, image: str, config: str) -> None:
        self._port, self._http_port = free_ports(2)
        self._container = (
            DockerContainer(image)
            .with_command("-c /etc/nats/nats.conf")
            .with_volume_mapping(config, "/etc/nats/nats.conf", "ro")
            # Fixed, because a restarted container would be given other ports.
            .with_bind_ports(4222, self._port)
            .with_bind_ports(8222, self._http_port)
        )
        self._created = False

    @property
    def url(self) -> str:
        """Address for clients."""
        return f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start (again) and wait until JetStream answers."""
        if self._created:
            self._wrapped().start()
        else:
            self._container.start()
            self._created = True
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while not self._healthy():
            assert time.monotonic() < deadline, "the NATS container does not answer"
            time.sleep(0.05)

    def stop(self) -> None:
        """SIGTERM."""
        self._wrapped().stop(timeout=10)

    def kill(self) -> None:
        """SIGKILL."""
        self._wrapped().kill()

    def restart(self) -> None:
        """Stop and start on the same data and ports."""
        self.stop()
        self.start()

    def _wrapped(self) -> Any:
        return self._container.get_docker_client().client.containers.get(
            self._container.get_wrapped_container().id
        )

    def _healthy(self) -> bool:
        url = f"http://127.0.0.1:{self._http_port}/healthz?js-enabled-only=true"
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


class MinioInContainer(_InContainer):
    """A MinIO with a bucket; start, kill and `with` as S3Server has them."""

    def __init__(self, image: str) -> None:
        port = free_ports(1)[0]
        self.settings = S3Settings(endpoint=f"127.0.0.1:{port}", bucket="upcycle")
        self._container = (
            DockerContainer(image)
            .with_command("server /data")
            .with_env("MINIO_ROOT_USER", self.settings.access_key.get_secret_value())
            .with_env("MINIO_ROOT_PASSWORD", self.settings.secret_key.get_secret_value())
            # Fixed, because a restarted container would be given another port.
            .with_bind_ports(9000, port)
        )
        self._created = False

    def start(self) -> None:
        """Start (again) and wait until the bucket takes a write."""
        if self._created:
            self._container.get_wrapped_container().start()
        else:
            self._container.start()
            self._created = True
        provision_bucket(self.settings, wait_s=_READY_TIMEOUT_S)
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while not takes_a_write(self.settings):
            assert time.monotonic() < deadline, "the MinIO container takes no write"
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL."""
        self._container.get_wrapped_container().kill()
