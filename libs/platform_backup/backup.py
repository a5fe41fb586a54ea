"""A stopped platform to a folder: databases, streams, bucket, and the manifest last.

The services must be stopped. What they decide is spread over four databases, the bus and the bucket, and is
made equal by messages; copied one after another beside running services, the parts would be of different
moments, and a fact that is in none of them would be lost without a trace.
"""

import asyncio
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from nats.aio.client import Client

from blob_store.provision import refuse_unfinished_restore
from blob_store.ref import ref_of_file
from event_bus.connection import connected
from event_bus.topology import STREAMS
from identities.tenants import OWN_TENANT
from platform_backup import manifest, objects, quiet, streams, tables
from platform_backup.errors import BackupFailed, BackupRefused, written_to
from platform_backup.manifest import (
    DATABASES,
    SNAPSHOTS,
    DatabasePart,
    FileDigest,
    Manifest,
    StoredObject,
    StreamPart,
)
from platform_backup.places import Places
from service_kit.clock import utc_now

Say = Callable[[str], None]


async def back_up(places: Places, folder: Path, *, say: Say = lambda _: None) -> Manifest:
    """Write a backup of a stopped platform to a new or empty folder, or to one in which a backup was not
    finished, whose files are removed first. say: called with what is done next.

    Raises BackupRefused, RestoreUnfinished (nothing was changed), BackupFailed, Unavailable (the folder is
    marked unfinished).
    """
    with written_to(folder):
        return await _backed_up(places, folder, say)


async def _backed_up(places: Places, folder: Path, say: Say) -> Manifest:
    _refuse_taken(folder)
    await asyncio.to_thread(refuse_unfinished_restore, places.s3)  # else half a platform would count as one
    async with connected(places.bus, "upcycle backup") as client:
        await quiet.refuse_unless_stopped(client, places)
        before = await quiet.traces(client)
        _begin(folder)
        say("databases")
        databases = await _save_databases(places, folder)
        say("streams")
        parts = await _save_streams(client, folder)
        say("objects")
        async with objects.opened(places.s3) as store:
            stored = await objects.save(store, folder)
        await quiet.refuse_unless_stopped(client, places)
        if await quiet.traces(client) != before:
            raise BackupFailed(
                "the platform changed while it was copied", "stop every service, then repeat the command"
            )
    made = _described(folder, databases, parts, stored)
    manifest.write(folder, made)
    return made


def _described(
    folder: Path, databases: dict[str, DatabasePart], parts: dict[str, StreamPart], stored: list[StoredObject]
) -> Manifest:
    return Manifest(
        made_at=utc_now().isoformat(timespec="seconds"),
        version=version("upcycle-platform"),
        tenant=OWN_TENANT,
        files=_digests(folder),
        streams=parts,
        databases=databases,
        num_objects=len(stored),
        object_bytes=sum(one.size_bytes for one in stored),
    )


async def _save_databases(places: Places, folder: Path) -> dict[str, DatabasePart]:
    target = folder / DATABASES
    target.mkdir()
    return {service: await tables.save(service, url, target) for service, url in places.databases.items()}


async def _save_streams(client: Client, folder: Path) -> dict[str, StreamPart]:
    """In the order of the topology: a stream that copies another comes after it."""
    (folder / SNAPSHOTS).mkdir()
    found = {}
    for spec in STREAMS:
        part = await streams.info_of(client, spec.name)
        if part is None:
            raise BackupFailed(f"stream {spec.name} does not exist", "run upcycle-provision")
        await streams.save(client, spec.name, folder / SNAPSHOTS / spec.name)
        found[spec.name] = part
    return found


def _refuse_taken(folder: Path) -> None:
    if (folder / manifest.FILE).exists():
        raise BackupRefused(f"{folder} holds a backup", "name a new folder")
    if folder.exists() and not (folder / manifest.BEGUN).exists() and any(folder.iterdir()):
        raise BackupRefused(f"{folder} is not empty, and not an unfinished backup", "name a new folder")


def _begin(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # it holds what people wrote, and digests of keys
    (folder / manifest.BEGUN).touch()
    for name in (DATABASES, SNAPSHOTS, manifest.OBJECTS):
        shutil.rmtree(folder / name, ignore_errors=True)


def _digests(folder: Path) -> dict[str, FileDigest]:
    files = [folder / manifest.INDEX]
    files += [
        path for name in (DATABASES, SNAPSHOTS) for path in (folder / name).rglob("*") if path.is_file()
    ]
    refs = [ref_of_file(str(path.relative_to(folder)), path) for path in sorted(files)]
    return {ref.key: FileDigest(sha256=ref.sha256, size_bytes=ref.size_bytes) for ref in refs}
