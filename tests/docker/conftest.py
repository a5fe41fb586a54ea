"""The same suites against container images: MinIO instead of SeaweedFS, the official NATS, Postgres.

They need a Docker engine, so they carry the marker `docker`, which the default run deselects and counts.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import docker  # type: ignore[import-untyped]
import pytest
from docker.errors import APIError, ImageNotFound  # type: ignore[import-untyped]
from testcontainers.community.nats import NatsContainer
from testcontainers.community.postgres import PostgresContainer
from tests.containers import MinioInContainer, NatsInContainer

from service_kit.groups import S3Settings

MINIO_IMAGE = "minio/minio:RELEASE.2025-09-07T16-13-09Z"
NATS_IMAGE = "nats:2.15.1-alpine"
NATS_CONFIG = Path(__file__).parents[2] / "deploy" / "nats" / "nats.conf"
POSTGRES_IMAGE = "postgres:17.2-alpine"


@pytest.fixture(scope="session")
def minio_image() -> str:
    """MinIO's image. Skips where neither this engine nor a registry has it: nothing stands in for it."""
    images = docker.from_env().images
    try:
        images.get(MINIO_IMAGE)
    except ImageNotFound:
        try:
            images.pull(MINIO_IMAGE)
        except APIError as error:
            pytest.skip(f"{MINIO_IMAGE} is not on this engine and cannot be pulled: {error.explanation}")
    return MINIO_IMAGE


@pytest.fixture(scope="module")
def s3_settings(minio_image: str) -> Iterator[S3Settings]:
    """A bucket on a MinIO of its own."""
    with MinioInContainer(minio_image) as minio:
        yield minio.settings


@pytest.fixture
def s3_process(minio_image: str) -> MinioInContainer:
    """A MinIO to be killed. Not started."""
    return MinioInContainer(minio_image)


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """A provisioned JetStream of the official image."""
    from event_bus.provision import provision

    with NatsContainer(NATS_IMAGE, jetstream=True) as nats:
        asyncio.run(provision(nats.nats_uri()))
        yield nats.nats_uri()


@pytest.fixture
def nats_server() -> Iterator[Callable[[], NatsInContainer]]:
    """Fresh servers of the official image that a test may kill and restart."""
    with ExitStack() as servers:

        def start() -> NatsInContainer:
            return servers.enter_context(NatsInContainer(NATS_IMAGE, str(NATS_CONFIG)))

        yield start


@pytest.fixture
def sql_url() -> Iterator[str]:
    """A fresh database of the official image."""
    with PostgresContainer(POSTGRES_IMAGE) as postgres:
        yield postgres.get_connection_url(driver=None)
