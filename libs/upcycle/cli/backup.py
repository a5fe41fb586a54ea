"""`upcycle backup` and `upcycle restore`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json
from upcycle.cli.platform_needed import require_platform
from upcycle.wording import amount

if TYPE_CHECKING:
    from platform_backup.manifest import Manifest
    from platform_backup.places import Places

_DATA_DIR = Path(".upcycle/up")


async def backup(folder: Path, *, data_dir: Path = _DATA_DIR, as_json: JsonFlag = False) -> int:
    """Write a stopped platform to FOLDER: databases, streams, every object, and a manifest with digests.

    With UPCYCLE_BUS_URL, UPCYCLE_S3_* and UPCYCLE_SQL_URL (with {service} in it) the platform they name: stop
    its services first, and leave NATS, the object store and the databases up.

    :param folder: new, empty, or of a backup that was not finished.
    :param data_dir: of the `upcycle up` that is backed up, which must be stopped.
    :param as_json: print one JSON line instead of text.
    """
    require_platform("backup")
    from platform_backup.backup import back_up

    async with _places(data_dir, has_run=True) as places:
        made = await back_up(places, folder.absolute(), say=human().print)
    _report("backup", made, folder, as_json=as_json)
    return Exit.OK


async def restore(folder: Path, *, data_dir: Path = _DATA_DIR, as_json: JsonFlag = False) -> int:
    """Make a new, stopped platform what the backup in FOLDER was. Every file is checked before anything is
    changed; after an interruption the same command goes on.

    With UPCYCLE_BUS_URL, UPCYCLE_S3_* and UPCYCLE_SQL_URL (with {service} in it) the platform they name: no
    streams, an empty bucket, databases without tables.

    :param folder: of a finished backup.
    :param data_dir: new folder for the next `upcycle up`.
    :param as_json: print one JSON line instead of text.
    """
    require_platform("restore")
    from local_stack.data_folder import keep_private
    from platform_backup.manifest import read
    from platform_backup.places import places_from_environment
    from platform_backup.restore import restore as restored

    keep_private()
    read(folder)  # before a server is started
    async with _places(data_dir, has_run=False) as places:
        done = await restored(places, folder.absolute(), say=human().print)
    _report("restore", done, folder, as_json=as_json)
    if places_from_environment() is None:
        human().print(
            f"restored into {data_dir}; next: upcycle up --model MODEL --data-dir {data_dir}",
            markup=False,
            soft_wrap=True,
        )
    return Exit.OK


@asynccontextmanager
async def _places(data_dir: Path, *, has_run: bool) -> AsyncIterator["Places"]:
    """The platform that the environment names, else that of a folder, with its servers started. has_run: the
    folder must be there.
    """
    from local_stack.servers import servers
    from local_stack.services import sql_folder
    from platform_backup.errors import BackupRefused
    from platform_backup.places import Places, places_from_environment

    if (named := places_from_environment()) is not None:
        yield named
        return
    if has_run and not sql_folder(data_dir).is_dir():
        raise BackupRefused(
            f"no platform has run in {data_dir.absolute()}", "name its folder with --data-dir"
        )
    async with servers(data_dir) as plan:
        yield Places.with_sqlite(plan.bus, plan.s3, sql_folder(plan.data_dir))


def _report(kind: str, done: "Manifest", folder: Path, *, as_json: bool) -> None:
    messages = sum(int(part.state["messages"]) for part in done.streams.values())
    rows = sum(count for part in done.databases.values() for count in part.rows.values())
    if as_json:
        fields = {"folder": str(folder.absolute()), "id": done.id, "made_at": done.made_at}
        counts = {"objects": done.num_objects, "object_bytes": done.object_bytes}
        print_json(kind, {**fields, **counts, "messages": messages, "rows": rows})
        return
    human().print(
        f"{folder}: {amount(rows, 'row')}, {amount(messages, 'message')}, "
        f"{amount(done.num_objects, 'object')} of {done.object_bytes / 1e6:.1f} MB, "
        f"made {done.made_at} by version {done.version}",
        markup=False,
        soft_wrap=True,
    )
