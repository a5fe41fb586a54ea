"""The store on any S3 that knows `If-None-Match: *`, through the `minio` client.

The client is synchronous, so each request runs in a thread of our own pool, with a connection per thread. It
retries nothing itself: there is one retry loop, here, with one budget that outlasts a restart of the store.
"""

import asyncio
import base64
import hashlib
import io
import logging
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from blob_store.classify import CAUGHT, TRANSIENT, Kind, StoreFailure, classify
from blob_store.client import make_client
from blob_store.errors import BlobError, BucketMissing, MissingBlob, StoreDenied, UnknownStoreError
from blob_store.ref import BlobRef, BlobStat, check_key, ref_of_bytes, ref_of_file
from blob_store.rights import PROBE
from service_kit.errors import StoreFull
from service_kit.groups import S3Settings
from upcycle.errors import Unavailable

T = TypeVar("T")
log = logging.getLogger(__name__)

_PARALLEL_PARTS: Final = 4
_FIRST_DELAY_S: Final = 0.05
_MAX_DELAY_S: Final = 1.0
_RECHECK_S: Final = 1.0
_PROVISION: Final = "create it first: python -m blob_store.provision"
_CHECK_KEY: Final = "check UPCYCLE_S3_KEY_FILE, or UPCYCLE_S3_ACCESS_KEY and UPCYCLE_S3_SECRET_KEY"
_IF_ABSENT: Final = {"If-None-Match": "*"}


class S3BlobStore:
    """BlobStore, and a component: `start` checks that the bucket is there, `stop` lets the threads go."""

    def __init__(self, settings: S3Settings, *, retry_s: float = 20.0, max_connections: int = 32) -> None:
        """`retry_s`: how long a request is repeated while the store is unavailable. Connects at first use."""
        self.name = "s3"
        self.bucket = settings.bucket
        self._endpoint = settings.endpoint
        self._retry_s = retry_s
        self._part_bytes = settings.part_bytes
        self._threads = ThreadPoolExecutor(max_connections, thread_name_prefix="s3")
        self._client, self._pool = make_client(settings, connections=max_connections * (1 + _PARALLEL_PARTS))
        self._away: str | None = "not started"
        self._recovery: asyncio.Task[None] | None = None

    async def put(self, key: str, data: bytes) -> BlobRef:
        """See BlobStore."""
        await self._write(f"put {check_key(key)}", lambda: self._put(key, data, {}))
        return ref_of_bytes(key, data)

    async def put_if_absent(self, key: str, data: bytes) -> BlobRef | None:
        """See BlobStore. A 412 may answer our own repeated request, so the bytes decide."""
        ref = ref_of_bytes(check_key(key), data)
        if await self._write(f"put {key} if absent", lambda: self._won(key, data)):
            return ref
        held = await self.read(key)
        if held is None:
            raise Unavailable(f"{key}: the store says that it exists and that it does not; try again")
        return ref if ref_of_bytes(key, held) == ref else None

    async def put_file(self, key: str, path: Path, *, sha256: str | None = None) -> BlobRef:
        """See BlobStore."""
        ref = await asyncio.to_thread(ref_of_file, check_key(key), path, sha256)
        await self._write(f"put {key} from {path}", lambda: self._put_parts(key, path))
        return ref

    async def get(self, ref: BlobRef) -> bytes:
        """See BlobStore."""
        data = await self.read(ref.key)
        if data is None:
            raise MissingBlob(f"{ref.key}: not in bucket {self.bucket} at {self._endpoint}")
        return ref.verify(data)

    async def get_file(self, ref: BlobRef, path: Path) -> None:
        """See BlobStore."""
        partial = path.with_name(f"{path.name}.{os.getpid()}.{id(ref):x}.partial")
        try:
            await self._request(f"get {check_key(ref.key)} into {path}", lambda: self._download(ref, partial))
            await asyncio.to_thread(partial.replace, path)
        finally:
            partial.unlink(missing_ok=True)

    async def copy_to(self, key: str, path: Path) -> BlobRef:
        """Write whatever is under a key, whose digest is not known, to `path`, and say what it was. Raises
        MissingBlob.
        """
        await self._request(f"get {check_key(key)} into {path}", lambda: self._stream_into(key, path))
        return await asyncio.to_thread(ref_of_file, key, path)

    async def read(self, key: str) -> bytes | None:
        """See BlobStore."""
        what = f"get {check_key(key)}"
        try:
            return await self._request(what, lambda: self._get(key))
        except MissingBlob:
            return None

    async def stat(self, key: str) -> BlobStat | None:
        """See BlobStore."""
        try:
            return await self._request(f"stat {check_key(key)}", lambda: self._stat(key))
        except MissingBlob:
            return None

    async def list(self, prefix: str) -> tuple[str, ...]:
        """See BlobStore."""
        return await self._request(f"list {prefix}", lambda: self._list(prefix))

    async def delete(self, key: str) -> None:
        """See BlobStore."""
        await self._request(f"delete {check_key(key)}", lambda: self._client.remove_object(self.bucket, key))

    async def start(self) -> None:
        """Wait for the store and check the bucket. Raises BucketMissing, Unavailable, StoreDenied."""
        if not await self._request("find the bucket", self._has_bucket):
            raise BucketMissing(f"bucket {self.bucket!r} does not exist at {self._endpoint}; {_PROVISION}")

    async def stop(self) -> None:
        """Let requests in flight end and close the connections."""
        if self._recovery is not None:
            self._recovery.cancel()
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)
        self._pool.clear()

    def ready(self) -> str | None:
        """What the last request found."""
        return self._away

    def _has_bucket(self) -> bool:
        """A key of a service may not ask for the bucket itself; the answer about an object that is not there
        shows as well whether there is a bucket."""
        try:
            return bool(self._client.bucket_exists(self.bucket))
        except CAUGHT as error:
            if classify(error).kind is not Kind.DENIED:
                raise
        try:
            self._get(PROBE)
        except CAUGHT as error:
            found = classify(error).kind
            if found is Kind.NO_BUCKET:
                return False
            if found is not Kind.MISSING:
                raise
        return True

    def _put(self, key: str, data: bytes, headers: dict[str, str]) -> None:
        # One PUT whatever the size: multipart uploads cannot be conditional everywhere, and the public method
        # has no argument for headers of this kind. Without the digest SeaweedFS keeps an empty object where
        # the writer is killed, or cut off, between the head and the body of its request; that object would
        # hold the key, or replace the one that was there.
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        self._client._put_object(self.bucket, key, data, {**headers, "Content-MD5": digest})

    def _won(self, key: str, data: bytes) -> bool:
        try:
            self._put(key, data, _IF_ABSENT)
        except CAUGHT as error:
            if classify(error).kind is Kind.PRECONDITION:
                return False
            raise
        return True

    def _put_parts(self, key: str, path: Path) -> None:
        size_bytes = path.stat().st_size
        if size_bytes <= self._part_bytes:  # one request: its body needs the digest, too
            self._put(key, path.read_bytes(), {})
            return
        with path.open("rb") as file:
            self._client.put_object(
                self.bucket,
                key,
                file,
                size_bytes,
                part_size=self._part_bytes,
                num_parallel_uploads=_PARALLEL_PARTS,
            )

    def _get(self, key: str) -> bytes:
        into = io.BytesIO()
        self._stream(key, into)
        return into.getvalue()

    def _stream(self, key: str, into: Any) -> None:
        response = self._client.get_object(self.bucket, key)
        try:
            for chunk in response.stream(1024 * 1024):
                into.write(chunk)
        finally:
            response.close()
            response.release_conn()

    def _download(self, ref: BlobRef, partial: Path) -> None:
        self._stream_into(ref.key, partial)
        ref.verify_file(partial)

    def _stream_into(self, key: str, path: Path) -> None:
        with path.open("wb") as file:
            self._stream(key, file)
            file.flush()
            os.fsync(file.fileno())

    def _stat(self, key: str) -> BlobStat:
        found = self._client.stat_object(self.bucket, key)
        return BlobStat(found.last_modified or datetime.now(UTC), int(found.size or 0))

    def _list(self, prefix: str) -> tuple[str, ...]:
        found = self._client.list_objects(self.bucket, prefix=prefix, recursive=True)
        return tuple(sorted(str(entry.object_name) for entry in found))

    async def _write(self, what: str, request: Callable[[], T]) -> T:
        """A request that adds bytes. A store that answers reads but cannot write is taken as full."""
        try:
            return await self._request(what, request)
        except Unavailable as error:
            if error.__cause__ is None or classify_cause(error).kind is not Kind.SERVER_ERROR:
                raise
            if not await self._answers():
                raise
            raise StoreFull(
                f"{what}: the store at {self._endpoint} answers but took no bytes for {self._retry_s:g} s "
                f"({classify_cause(error).detail}); is its disk full?"
            ) from error

    async def _answers(self) -> bool:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._has_bucket)
        except CAUGHT:
            return False

    async def _request(self, what: str, request: Callable[[], T]) -> T:
        """Run one idempotent request in a thread, again while the store is unavailable, within the budget."""
        give_up_at = time.monotonic() + self._retry_s
        delay_s = _FIRST_DELAY_S
        while True:
            try:
                result = await asyncio.get_running_loop().run_in_executor(self._threads, request)
            except CAUGHT as error:
                failure = classify(error)
                wait_s = delay_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
                if failure.kind not in TRANSIENT or time.monotonic() + wait_s > give_up_at:
                    raise self._typed(what, failure) from error
                self._went_away(failure.detail)
                await asyncio.sleep(wait_s)
                delay_s = min(delay_s * 2, _MAX_DELAY_S)
            else:
                self._away = None
                return result

    def _went_away(self, why: str) -> None:
        """Not ready from now on; looks by itself whether the store is back, because no request may come."""
        self._away = why
        if self._recovery is None or self._recovery.done():
            log.warning("object_store_away", extra={"endpoint": self._endpoint, "why": why})
            self._recovery = asyncio.create_task(self._until_back(), name="s3 until back")

    async def _until_back(self) -> None:
        since = time.monotonic()
        while self._away is not None:
            await asyncio.sleep(_RECHECK_S)
            if await self._answers():
                self._away = None
        log.info("object_store_back", extra={"endpoint": self._endpoint, "after_s": time.monotonic() - since})

    def _typed(self, what: str, failure: StoreFailure) -> BlobError | Unavailable:
        where = f"{what} in bucket {self.bucket} at {self._endpoint}: {failure.detail}"
        match failure.kind:
            case Kind.MISSING:
                return MissingBlob(where)
            case Kind.NO_BUCKET:
                return BucketMissing(f"{where}; {_PROVISION}")
            case Kind.DENIED:
                return StoreDenied(f"{where}; {_CHECK_KEY}")
            case Kind.FULL:
                return StoreFull(where)
            case Kind.PASSING | Kind.SERVER_ERROR:
                self._went_away(failure.detail)
                return Unavailable(
                    f"the object store at {self._endpoint}",
                    hint=f"{what} in bucket {self.bucket}: {failure.detail}; "
                    f"gave up after {self._retry_s:g} s",
                )
            case _:
                return UnknownStoreError(where)


def classify_cause(error: BlobError | Unavailable) -> StoreFailure:
    """What the client's own error behind `error` meant."""
    cause = error.__cause__
    return classify(cause) if isinstance(cause, Exception) else StoreFailure(Kind.OTHER, str(error))
