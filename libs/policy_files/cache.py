"""Fetching a policy into a content-addressed cache on local disk.

`objects/<sha256>` holds files once; `policies/<digest>/` is a directory of hard links to them that appears by
one rename, after every byte was checked. Several processes may fetch into one cache; one that prunes it needs
its `policies` for itself, as it does not know what the others use. `objects` may be one folder for all
caches of a host: a file comes to the host once and stays while any cache links to it.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from blob_store import BlobStore, ref_of_file
from blob_store import ref as blob_ref
from policy_files.errors import CorruptPolicy
from policy_files.manifest import check_manifest
from upcycle.api.training.v1.training_pb2 import PolicyFile, PolicyManifest

_PARALLEL_FETCHES = 4
_FETCHED_BY_ANOTHER_S = 120.0
"""For how long a process waits for another's fetch of a file before it fetches the file itself."""
_LOOK_S = 0.02
_IN_USE = ".in-use"
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
"""What file systems without locks say. There a file may be fetched twice, and one that is pruned from under
a fetch is fetched again."""
_ABANDONED_S = 3600.0
"""A partial file or folder that was not written to for so long belongs to a process that was killed."""


async def fetch(
    store: BlobStore, manifest: PolicyManifest, cache_dir: Path, *, objects: Path | None = None
) -> Path:
    """The directory with exactly the manifest's files, every digest checked, also when it was cached before.

    objects: where files lie once, `cache_dir / "objects"` by default; on the file system of cache_dir.
    Raises InvalidManifest, CorruptPolicy, and the store's MissingBlob, CorruptBlob, Unavailable.
    """
    check_manifest(manifest)
    target = cache_dir / "policies" / manifest.digest
    if target.is_dir():
        with contextlib.suppress(CorruptPolicy):
            await verify(target, manifest)
            await asyncio.to_thread(os.utime, target)
            return target
        await asyncio.to_thread(shutil.rmtree, target, True)
    objects = objects or cache_dir / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    limit = asyncio.Semaphore(_PARALLEL_FETCHES)
    async with _locked(objects / _IN_USE, fcntl.LOCK_SH):  # no prune removes what is not linked to yet
        try:
            async with asyncio.TaskGroup() as fetching:
                for file in manifest.files:
                    fetching.create_task(_fetch_file(store, file, objects, limit))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        await asyncio.to_thread(_assemble, manifest, objects, target)
    return target


async def verify(directory: Path, manifest: PolicyManifest) -> None:
    """Raises CorruptPolicy unless the directory holds the manifest's files, byte for byte, no others."""
    await asyncio.to_thread(_verify, directory, manifest)


async def prune(
    cache_dir: Path, *, keep: Collection[str], newest: int, objects: Path | None = None
) -> list[str]:
    """Remove policies except digests in `keep` and the `newest` used last, and what fetches that were killed
    left behind an hour ago; returns the removed digests. Files in `objects` that no cache links to go, too,
    unless somebody fetches just now: then the next call removes them."""
    own = cache_dir / "objects"  # also where the folder is shared now, and was not before
    return await asyncio.to_thread(_prune, cache_dir, {own, objects or own}, frozenset(keep), newest)


async def _fetch_file(store: BlobStore, file: PolicyFile, objects: Path, limit: asyncio.Semaphore) -> None:
    target = objects / file.blob.sha256
    ref = blob_ref.from_wire(file.blob)
    async with limit, _locked(objects / f".lock-{file.blob.sha256[:2]}", fcntl.LOCK_EX):
        if await asyncio.to_thread(_is_whole, target, file):
            return
        partial = await asyncio.to_thread(_new_file, objects)
        try:
            await store.get_file(ref, partial)
            await asyncio.to_thread(_accept, partial, target, file)
        finally:
            await asyncio.to_thread(partial.unlink, missing_ok=True)


@contextlib.asynccontextmanager
async def _locked(path: Path, kind: int) -> AsyncIterator[None]:
    """Hold the lock of a file, which ends with its process. Of one that stands still with it, and after
    `_FETCHED_BY_ANOTHER_S`, it goes on without: then a file may be fetched twice, and appears by a rename
    all the same."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        until_s = time.monotonic() + _FETCHED_BY_ANOTHER_S
        while not _has_lock(handle, kind) and time.monotonic() < until_s:
            await asyncio.sleep(_LOOK_S)
        yield
    finally:
        os.close(handle)


def _has_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _new_file(folder: Path) -> Path:
    handle, name = tempfile.mkstemp(dir=folder, prefix=".fetch-")
    os.close(handle)
    return Path(name)


def _accept(partial: Path, target: Path, file: PolicyFile) -> None:
    if not _is_whole(partial, file):
        raise CorruptPolicy(f"{file.name} arrived with other bytes than sha256 {file.blob.sha256}")
    partial.replace(target)


def _is_whole(path: Path, file: PolicyFile) -> bool:
    return (
        path.is_file()
        and path.stat().st_size == file.blob.size_bytes
        and ref_of_file(file.blob.key, path).sha256 == file.blob.sha256
    )


def _assemble(manifest: PolicyManifest, objects: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=target.parent, prefix=".assemble-"))
    try:
        for file in manifest.files:
            path = staging / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(objects / file.blob.sha256, path)
            except OSError:  # a file system without hard links
                shutil.copyfile(objects / file.blob.sha256, path)
        _verify(staging, manifest)
        try:
            staging.rename(target)
        except OSError:
            # Another process of the same machine was first; its directory must be as good as ours.
            _verify(target, manifest)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _verify(directory: Path, manifest: PolicyManifest) -> None:
    wanted = {file.name: file for file in manifest.files}
    present = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    if present != wanted.keys():
        odd = sorted(present ^ wanted.keys())
        raise CorruptPolicy(f"{directory} and the manifest disagree about {', '.join(odd[:5])}")
    for name, file in wanted.items():
        if not _is_whole(directory / name, file):
            raise CorruptPolicy(f"{directory / name} is not the file with sha256 {file.blob.sha256}")


def _prune(cache_dir: Path, objects: Collection[Path], keep: frozenset[str], newest: int) -> list[str]:
    policies = [path for path in (cache_dir / "policies").glob("[!.]*") if path.is_dir()]
    policies.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    removed = [path for path in policies[newest:] if path.name not in keep]
    for path in removed:
        shutil.rmtree(path, ignore_errors=True)
    for folder in (cache_dir / "policies", *objects):
        _remove_abandoned(folder)
    for folder in filter(Path.is_dir, objects):
        _remove_unlinked(folder)
    return [path.name for path in removed]


def _remove_unlinked(objects: Path) -> None:
    handle = os.open(objects / _IN_USE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _has_lock(handle, fcntl.LOCK_EX):
            return
        for path in objects.glob("[!.]*"):
            # A link count of one: no policy directory uses the object any more.
            if path.stat().st_nlink == 1:
                path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def _remove_abandoned(folder: Path) -> None:
    """Partial files and half-assembled folders of processes that were killed."""
    for path in (*folder.glob(".fetch-*"), *folder.glob(".assemble-*")):
        with contextlib.suppress(FileNotFoundError):  # its fetch ended meanwhile
            if time.time() - path.stat().st_mtime < _ABANDONED_S:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
