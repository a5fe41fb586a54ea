"""The same suites against container images: MinIO instead of SeaweedFS, the official NATS, Postgres.

They need a Docker engine, so they carry the marker `docker`, which the default run deselects and counts.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pydantic import SecretStr
from testcontainers.community.minio import MinioContainer
from testcontainers.community.nats import NatsContainer
from testcontainers.community.postgres import PostgresContainer
from tests.containers import NatsInContainer

from service_kit.groups import S3Settings

MINIO_IMAGE = "minio/minio:RELEASE.2025-09-07T16-13-09Z"
NATS_IMAGE = "nats:2.15.1-alpine"
NATS_CONFIG = Path(__file__).parents[2] / "deploy" / "nats" / "nats.conf"
POSTGRES_IMAGE = "postgres:17.2-alpine"


@pytest.fixture(scope="module")
def s3_settings() -> Iterator[S3Settings]:
    """A bucket on a MinIO of its own."""
    with MinioContainer(MINIO_IMAGE) as minio:
        minio.get_client().make_bucket("upcycle")
        config = minio.get_config()
        yield S3Settings(
            endpoint=config["endpoint"],
            access_key=SecretStr(config["access_key"]),
            secret_key=SecretStr(config["secret_key"]),
            bucket="upcycle",
        )


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
