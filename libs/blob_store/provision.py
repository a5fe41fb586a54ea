"""Create the bucket, once per deployment: `python -m blob_store.provision`. Safe to repeat."""

import sys
import time
from typing import Final

from minio import Minio

from blob_store.classify import CAUGHT, TRANSIENT, Kind, classify
from blob_store.client import PROBE_TIMEOUT, make_client
from service_kit.groups import S3Settings
from service_kit.settings import EXIT_SETTINGS, SettingsError, load_settings
from upcycle.errors import Unavailable, UpcycleError

_OURS_ALREADY: Final = frozenset({"BucketAlreadyOwnedByYou", "BucketAlreadyExists"})
_POLL_S: Final = 0.1
RESTORE_MARKER: Final = "restore-unfinished.json"
"""Key of the object that is there while `upcycle restore` fills the bucket."""


class RestoreUnfinished(UpcycleError):
    """A restore was interrupted: the bucket, the databases or the streams are half of a platform."""

    kind = "restore_unfinished"


def provision_bucket(settings: S3Settings, *, wait_s: float = 30.0) -> bool:
    """Make sure that the bucket exists; True if this call created it. Raises Unavailable."""
    client, pool = make_client(settings, timeout=PROBE_TIMEOUT)
    try:
        return _create_until(client, settings, time.monotonic() + wait_s)
    finally:
        pool.clear()


def refuse_unfinished_restore(settings: S3Settings) -> None:
    """Raises RestoreUnfinished while the bucket says that a restore goes on, Unavailable."""
    client, pool = make_client(settings, timeout=PROBE_TIMEOUT)
    try:
        client.stat_object(settings.bucket, RESTORE_MARKER)
    except CAUGHT as error:
        failure = classify(error)
        if failure.kind is Kind.MISSING:
            return
        raise Unavailable(f"bucket {settings.bucket} at {settings.endpoint}: {failure.detail}") from error
    finally:
        pool.clear()
    raise RestoreUnfinished(
        f"a restore into bucket {settings.bucket} at {settings.endpoint} was not finished",
        "repeat the same `upcycle restore`, then start the platform",
    )


def _create_until(client: Minio, settings: S3Settings, give_up_at: float) -> bool:
    while True:
        try:
            return _create(client, settings.bucket)
        except CAUGHT as error:
            failure = classify(error)
            if failure.kind not in TRANSIENT or time.monotonic() > give_up_at:
                where = f"bucket {settings.bucket} at {settings.endpoint}"
                raise Unavailable(f"cannot create {where}: {failure.detail}") from error
            time.sleep(_POLL_S)


def _create(client: Minio, bucket: str) -> bool:
    if client.bucket_exists(bucket):
        return False
    try:
        client.make_bucket(bucket)
    except CAUGHT as error:
        if getattr(error, "code", None) in _OURS_ALREADY:  # someone provisioned at the same moment
            return False
        raise
    return True


def main() -> None:
    """Exit status: 0 the bucket is there, 1 it could not be made or is half restored, 2 wrong settings."""
    try:
        settings = load_settings(S3Settings, program="blob_store.provision")
        created = provision_bucket(settings)
        refuse_unfinished_restore(settings)
    except SettingsError as error:
        print(error, file=sys.stderr)
        raise SystemExit(EXIT_SETTINGS) from None
    except (Unavailable, RestoreUnfinished) as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from None
    print(f"bucket {settings.bucket} {'created' if created else 'exists'}", file=sys.stderr)


if __name__ == "__main__":
    main()
