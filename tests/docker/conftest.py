"""The same suites against container images: MinIO instead of SeaweedFS, the official NATS, Postgres.

They need a Docker engine, so they carry the marker `docker`, which the default run deselects and counts.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import docker  # type: ignore[import-untyped]
import pytest
from docker.errors import APIError, ImageNotFound  # type: ignore[import-untyped]
from testcontainers.community.nats import NatsContainer
from testcontainers.community.postgres import PostgresContainer
from tests.containers import MinioInContainer, NatsInContainer
from tests.docker.composed import ROOT, Composed, image_of
from tests.support import refused

from service_kit.groups import S3Settings

MINIO_IMAGE = image_of("UPCYCLE_MINIO_IMAGE")
NATS_IMAGE = image_of("UPCYCLE_NATS_IMAGE")
NATS_CONFIG = Path(__file__).parents[2] / "deploy" / "nats" / "nats.conf"
POSTGRES_IMAGE = image_of("UPCYCLE_POSTGRES_IMAGE")
_STAND_IN = "upcycle.stand-in"
"""The label of what deploy/images/stand_in.sh builds."""

_seen: dict[str, str] = {}
"""Image -> what this run saw of it, for the closing lines."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """On which images the suites ran, and on which they did not; how many attacks were refused."""
    for image, what in _seen.items():
        terminalreporter.write_line(f"{image}: {what}")
    refused.report(terminalreporter, "from containers")


def on_engine(image: str) -> str:
    """The image, pulled where the engine does not have it. Raises APIError where it cannot be."""
    images = docker.from_env().images
    try:
        found = images.get(image)
    except ImageNotFound:
        found = images.pull(image)
    _seen[image] = "a stand-in, not the image itself" if _STAND_IN in found.labels else "the image itself"
    return image


@pytest.fixture(scope="session")
def minio_image() -> str:
    """MinIO's image. Nothing stands in for it, so where it cannot be had its tests are skipped, and the last
    lines say so.
    """
    try:
        return on_engine(MINIO_IMAGE)
    except APIError as error:
        _seen[MINIO_IMAGE] = why = f"NOT CHECKED, it cannot be pulled: {error.explanation}"
        pytest.skip(f"{MINIO_IMAGE}: {why}")


@pytest.fixture(scope="session")
def nats_image() -> str:
    """The official NATS image, or its stand-in."""
    return on_engine(NATS_IMAGE)


@pytest.fixture(scope="session")
def postgres_image() -> str:
    """The official Postgres image, or its stand-in."""
    return on_engine(POSTGRES_IMAGE)


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
def nats_url(nats_image: str) -> Iterator[str]:
    """A provisioned JetStream of the official image."""
    from event_bus.provision import provision

    with NatsContainer(nats_image, jetstream=True) as nats:
        asyncio.run(provision(nats.nats_uri()))
        yield nats.nats_uri()


@pytest.fixture
def nats_server(nats_image: str) -> Iterator[Callable[[], NatsInContainer]]:
    """Fresh servers of the official image that a test may kill and restart."""
    with ExitStack() as servers:

        def start() -> NatsInContainer:
            return servers.enter_context(NatsInContainer(nats_image, str(NATS_CONFIG)))

        yield start


@pytest.fixture
def sql_url(postgres_image: str) -> Iterator[str]:
    """A fresh database of the official image."""
    with PostgresContainer(postgres_image) as postgres:
        yield postgres.get_connection_url(driver=None)


@pytest.fixture(scope="session")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    """docker-compose.yml, all of it up, with secrets of its own; removed with its volumes afterwards."""
    example = (ROOT / "deploy" / "secrets.example.env").read_text()
    file = Path(tmp_path_factory.mktemp("compose")) / "secrets.env"
    file.write_text(re.sub("change-me", lambda _: secrets.token_hex(16), example))
    project = Composed(file, Path(tmp_path_factory.mktemp("backups")))
    try:
        project.up()
        yield project
    finally:
        print(project.logs())
        project.down()
