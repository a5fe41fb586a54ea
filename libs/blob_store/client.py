"""The one place that constructs the S3 client: no retries of its own, bounded waits, enough connections."""

from typing import Final

import urllib3
from minio import Minio

from blob_store.keys import key_of
from service_kit.groups import S3Settings

# urllib3 also applies the connect timeout to sending the body, so it must allow for large parts under load.
TRANSFER_TIMEOUT: Final = urllib3.Timeout(connect=30.0, read=60.0)
PROBE_TIMEOUT: Final = urllib3.Timeout(connect=2.0, read=5.0)
"""For probes."""


def make_client(
    settings: S3Settings, *, timeout: urllib3.Timeout = TRANSFER_TIMEOUT, connections: int = 1
) -> tuple[Minio, urllib3.PoolManager]:
    """A client and its connection pool, to be cleared in the end. Connects at the first request. Raises
    StoreKeyRefused."""
    key = key_of(settings)
    pool = urllib3.PoolManager(
        maxsize=connections,
        timeout=timeout,
        retries=False,
        cert_reqs="CERT_REQUIRED",
        ca_certs=None if settings.ca is None else str(settings.ca),
    )
    client = Minio(
        settings.endpoint,
        access_key=key.access_key,
        secret_key=key.secret_key,
        secure=settings.secure,
        region=settings.region,
        http_client=pool,
    )
    return client, pool
