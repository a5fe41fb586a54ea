"""A platform from a folder, into places that hold nothing: bucket, databases, streams.

What is referred to comes before what refers to it. Each object, each database and each stream appears whole
or not at all. While it goes on there is a marker in the bucket: provisioning refuses beside it, so that no
service starts on half a platform, and the same command goes on after an interruption.
"""

import json
from collections.abc import Callable
from pathlib import Path

from nats.aio.client import Client

from blob_store.provision import RESTORE_MARKER, provision_bucket
from blob_store.s3 import S3BlobStore
from event_bus.connection import connected
from event_bus.topology import STREAMS
from identities.tenants import OWN_TENANT, VARIABLE
from platform_backup import manifest, objects, quiet, streams, tables
from platform_backup.errors import BackupRefused
from platform_backup.manifest import DATABASES, SNAPSHOTS, Manifest
from platform_backup.places import Places
from sql_store.migrations import knows

Say = Callable[[str], None]
_EMPTY_HINT = (
    "restore into a new platform: no streams, no tables, an empty bucket; "
    "on one machine name a new folder with --data-dir"
)


async def restore(places: Places, folder: Path, *, say: Say = lambda _: None) -> Manifest:
    """Make a stopped platform that holds nothing what the backup in `folder` was. say: called with what is
    done next.

    Raises BackupRefused, BackupDamaged (nothing was changed), BackupFailed, Unavailable (repeat the command).
    """
    kept = manifest.read(folder)
    _refuse_foreign(places, kept)
    say("verifying the backup")
    manifest.verify(folder, kept)
    async with connected(places.bus, "upcycle restore") as client:
        await quiet.refuse_unless_stopped(client, places)
        provision_bucket(places.s3)
        async with objects.opened(places.s3) as store:
            goes_on = await _goes_on(store, kept)
            if not goes_on:
                await _refuse_held(client, places, store)
            done = await _restored_databases(places, kept, goes_on=goes_on)
            await store.put(RESTORE_MARKER, json.dumps({"backup": kept.id}).encode())
            say("objects")
            await objects.load(store, folder)
            say("databases")
            for service in kept.databases.keys() - done:
                url, part = places.databases[service], kept.databases[service]
                await tables.load(service, url, part, folder / DATABASES)
            say("streams")
            await _load_streams(client, kept, folder)
            await store.delete(RESTORE_MARKER)
    return kept


def _refuse_foreign(places: Places, kept: Manifest) -> None:
    """A backup that this version, this tenant, or these places, cannot take."""
    if kept.tenant != OWN_TENANT:  # its rows, keys and subjects would belong to no tenant that runs
        raise BackupRefused(
            f"the backup is of tenant {kept.tenant!r:.60}, and this command works for {OWN_TENANT!r}",
            f"set {VARIABLE}={kept.tenant:.60}",
        )
    for what, names, known in (
        ("stream", kept.streams.keys(), {spec.name for spec in STREAMS}),
        ("database of service", kept.databases.keys(), places.databases.keys()),
    ):
        if foreign := sorted(names - known):
            raise BackupRefused(
                f"the backup has a {what} {foreign[0]!r:.80}, which this version does not have",
                f"restore with version {kept.version}",
            )
    for service, url in places.databases.items():
        part = kept.databases.get(service)
        if part is None:
            raise BackupRefused(
                f"the backup has no database of {service}", "use a backup of a whole platform"
            )
        if part.backend != tables.backend_of(url):
            raise BackupRefused(
                f"the backup has {service} of {part.backend}, the platform has {tables.backend_of(url)}",
                f"restore into a platform on {part.backend}",
            )
        if not knows(service, part.revision):
            raise BackupRefused(
                f"this version does not know revision {part.revision!r} of the tables of {service}",
                f"restore with version {kept.version} or a later one",
            )


async def _goes_on(store: S3BlobStore, kept: Manifest) -> bool:
    """Whether a restore of this backup was interrupted here. Raises BackupRefused for another one's."""
    marker = await store.read(RESTORE_MARKER)
    if marker is None:
        return False
    try:
        began = json.loads(marker)["backup"]
    except (ValueError, KeyError, TypeError):
        began = "one that its marker does not name"
    if began != kept.id:
        raise BackupRefused(
            f"a restore of another backup, {began}, was interrupted here",
            "repeat that one, or begin with an empty platform",
        )
    return True


async def _refuse_held(client: Client, places: Places, store: S3BlobStore) -> None:
    if keys := await objects.keys_in(store):
        raise BackupRefused(f"bucket {store.bucket} holds {len(keys)} objects, {keys[0]} first", _EMPTY_HINT)
    for service, url in places.databases.items():
        if held := await tables.rows_of(url):
            raise BackupRefused(f"the database of {service} has tables: {', '.join(held)}", _EMPTY_HINT)
    for spec in STREAMS:
        info = await streams.info_of(client, spec.name)
        if info is not None and info.state["last_seq"]:
            raise BackupRefused(f"stream {spec.name} has {info.state['messages']} messages", _EMPTY_HINT)


async def _restored_databases(places: Places, kept: Manifest, *, goes_on: bool) -> set[str]:
    """Those that the interrupted restore finished. Raises BackupRefused for one that it did not write."""
    done = set()
    for service, url in places.databases.items() if goes_on else ():
        rows = await tables.rows_of(url)
        if rows and rows != kept.databases[service].rows:
            raise BackupRefused(
                f"the database of {service} was changed after the interrupted restore",
                "begin with an empty platform",
            )
        if rows:
            done.add(service)
    return done


async def _load_streams(client: Client, kept: Manifest, folder: Path) -> None:
    """Whatever is there is empty, or of the interrupted restore. Those that copy another go first."""
    for name in reversed(kept.streams):
        if await streams.info_of(client, name) is not None:
            await streams.remove(client, name)
    for name, part in kept.streams.items():
        await streams.load(client, name, part, folder / SNAPSHOTS / name)
    await streams.keep_places(client, kept.streams)
