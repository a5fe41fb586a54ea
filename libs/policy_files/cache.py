"""Fetching a policy into a content-addressed cache on local disk.

`objects/<sha256>` holds files once; `policies/<digest>/` is a directory of hard links to them that appears by
one rename, after every byte was checked. Several processes may fetch into one cache; one that prunes it needs
it for itself, as it does not know what the others use.
"""

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from blob_store import BlobStore, ref_of_file
from blob_store import ref as blob_ref
from policy_files.errors import CorruptPolicy
from policy_files.manifest import check_manifest
from upcycle.api.training.v1.training_pb2 import PolicyFile, PolicyManifest

_PARALLEL_FETCHES = 4
_ABANDONED_S = 3600.0
"""A partial file or folder that was not written to for so long belongs to a process that was killed."""


async def fetch(store: BlobStore, manifest: PolicyManifest, cache_dir: Path) -> Path:
    """The directory with exactly the manifest's files, every digest checked, also when it was cached before.

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
    objects = cache_dir / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    limit = asyncio.Semaphore(_PARALLEL_FETCHES)
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


async def prune(cache_dir: Path, *, keep: Collection[str], newest: int) -> list[str]:
    """Remove policies except digests in `keep` and the `newest` used last, and what fetches that were killed
    left behind an hour ago; returns the removed digests."""
    return await asyncio.to_thread(_prune, cache_dir, frozenset(keep), newest)


async def _fetch_file(store: BlobStore, file: PolicyFile, objects: Path, limit: asyncio.Semaphore) -> None:
    target = objects / file.blob.sha256
    ref = blob_ref.from_wire(file.blob)
    async with limit:
        if await asyncio.to_thread(_is_whole, target, file):
            return
        partial = await asyncio.to_thread(_new_file, objects)
        try:
            await store.get_file(ref, partial)
            await asyncio.to_thread(_accept, partial, target, file)
        finally:
            await asyncio.to_thread(partial.unlink, missing_ok=True)


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


def _prune(cache_dir: Path, keep: frozenset[str], newest: int) -> list[str]:
    policies = [path for path in (cache_dir / "policies").glob("[!.]*") if path.is_dir()]
    policies.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    removed = [path for path in policies[newest:] if path.name not in keep]
    for path in removed:
        shutil.rmtree(path, ignore_errors=True)
    _remove_abandoned(cache_dir)
    for path in (cache_dir / "objects").glob("[!.]*"):
        # A link count of one: no policy directory uses the object any more.
        if path.stat().st_nlink == 1:
            path.unlink(missing_ok=True)
    return [path.name for path in removed]


def _remove_abandoned(cache_dir: Path) -> None:
    """Partial files and half-assembled folders of processes that were killed."""
    for path in (*(cache_dir / "objects").glob(".fetch-*"), *(cache_dir / "policies").glob(".assemble-*")):
        with contextlib.suppress(FileNotFoundError):  # its fetch ended meanwhile
            if time.time() - path.stat().st_mtime < _ABANDONED_S:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
