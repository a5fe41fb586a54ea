"""What is half, foreign, unreadable, or does not fit is refused by name, in both directions."""

import json
import resource
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.libs.platform_backup.conftest import Site, SiteMaker, store_of
from tests.postgres import BACKENDS

from blob_store.provision import RESTORE_MARKER, RestoreUnfinished
from platform_backup import manifest
from platform_backup.backup import back_up
from platform_backup.errors import BackupDamaged, BackupFailed, BackupRefused
from platform_backup.restore import restore
from sql_store.database import Database

GATEWAY = "model_gateway"


async def test_a_platform_on_which_a_restore_was_interrupted_gives_no_backup(
    new_site: SiteMaker, tmp_path: Path
) -> None:
    site, folder = await new_site("old"), tmp_path / "backup"
    await site.fill()
    async with store_of(site.places) as store:
        await store.put(RESTORE_MARKER, b'{"backup": "some"}')
    with pytest.raises(RestoreUnfinished, match="was not finished; repeat the same `upcycle restore`"):
        await back_up(site.places, folder)
    assert not folder.exists()


def left_of_another(path: Path) -> None:
    """The log of a database whose file was deleted: what SQLite plays over the next file of that name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    log, kept = path.with_name(f"{path.name}-wal"), path.with_name("kept")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE foreign_table (x)")
        connection.executemany("INSERT INTO foreign_table VALUES (?)", [("y" * 1000,) for _ in range(50)])
        connection.commit()
        shutil.copy(log, kept)
    path.unlink()
    kept.rename(log)


async def test_a_log_that_another_database_left_is_not_played_over_the_restored_one(
    new_site: SiteMaker, tmp_path: Path
) -> None:
    old, new, folder = await new_site("old"), await new_site("new"), tmp_path / "backup"
    await old.fill()
    await back_up(old.places, folder)
    file = Path(str(new.places.databases[GATEWAY].get_secret_value()).removeprefix("sqlite:///"))
    left_of_another(file)
    await restore(new.places, folder)
    assert (await new.content())["tables"] == (await old.content())["tables"]
    assert [one.name for one in file.parent.glob(f"{file.name}-*")] == []


Change = Callable[[dict[str, Any]], None]


def rewritten(folder: Path, change: Change) -> None:
    """A manifest that somebody made, with the right digest of itself."""
    fields = json.loads((folder / manifest.FILE).read_text())
    del fields["id"]
    change(fields)
    manifest.write(folder, manifest.Manifest.model_validate(fields))


def foreign_stream(fields: dict[str, Any]) -> None:
    fields["streams"]["../../x"] = fields["streams"]["EVENTS"]


def foreign_service(fields: dict[str, Any]) -> None:
    fields["databases"]["billing"] = fields["databases"][GATEWAY]


def unlisted(name: str) -> Change:
    def change(fields: dict[str, Any]) -> None:
        del fields["files"][name]

    return change


def fewer(fields: dict[str, Any]) -> None:
    fields["num_objects"] -= 1


CHANGES: list[tuple[Change, type[Exception], str]] = [
    (foreign_stream, BackupRefused, "the backup has a stream '../../x', which this version does not have"),
    (foreign_service, BackupRefused, "the backup has a database of service 'billing', which this version"),
    (unlisted("streams/EVENTS"), BackupDamaged, "does not list streams/EVENTS"),
    (unlisted(f"databases/{GATEWAY}.sqlite"), BackupDamaged, f"does not list databases/{GATEWAY}.sqlite"),
    (unlisted("objects.jsonl"), BackupDamaged, "does not list objects.jsonl"),
    (fewer, BackupDamaged, "has 4 objects of 300010 bytes, backup.json says 3 of 300010"),
]


async def test_a_backup_with_foreign_or_missing_parts_is_refused_before_anything_is_written(
    new_site: SiteMaker, tmp_path: Path
) -> None:
    old, new, folder = await new_site("old"), await new_site("new"), tmp_path / "backup"
    await old.fill()
    await back_up(old.places, folder)
    whole = (folder / manifest.FILE).read_bytes()
    for change, error, said in CHANGES:
        rewritten(folder, change)
        with pytest.raises(error, match=said):
            await restore(new.places, folder)
        (folder / manifest.FILE).write_bytes(whole)
    held = await new.content()
    assert (held["streams"], held["objects"], held["tables"][GATEWAY]) == ({}, {}, {})
    await restore(new.places, folder)


@contextmanager
def room_for(size_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size_bytes", [16_384, 250_000], ids=["databases", "objects"])
async def test_a_disk_that_takes_no_more_is_named_with_its_bytes(
    new_site: SiteMaker, tmp_path: Path, size_bytes: int
) -> None:
    old, new, folder = await new_site("old"), await new_site("new"), tmp_path / "backup"
    await old.fill()
    said = (
        rf"{folder}[a-z/]* cannot be written: .*; \d+ bytes are written, \d+ bytes are free there; make room"
    )
    with room_for(size_bytes), pytest.raises(BackupFailed, match=said):
        await back_up(old.places, folder)
    await back_up(old.places, folder)
    with room_for(16_384), pytest.raises(BackupFailed, match=r"sql-\d+ cannot be written: File too large"):
        await restore(new.places, folder)
    await restore(new.places, folder)
    assert (await new.content())["tables"] == (await old.content())["tables"]


@pytest.mark.parametrize("folder", ["file", "file/below"])
async def test_a_folder_that_is_a_file_is_named(new_site: SiteMaker, tmp_path: Path, folder: str) -> None:
    site = await new_site("old")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BackupFailed, match=f"{folder} cannot be written: Not a directory"):
        await back_up(site.places, tmp_path / folder)
    assert (tmp_path / "file").read_text() == "mine"


async def emptied(site: Site, statement: str) -> None:
    database = Database(site.places.databases[GATEWAY])
    await database.start()
    await database.run(lambda connection: connection.exec_driver_sql(statement))
    await database.stop()


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_database_without_a_revision_is_refused_by_name(
    new_site: SiteMaker, tmp_path: Path, backend: str
) -> None:
    site = await new_site("old", backend)
    await site.fill()
    await emptied(site, f"DELETE FROM {GATEWAY}_version")  # noqa: S608
    with pytest.raises(BackupRefused, match=f"the database of {GATEWAY} says no revision of its tables"):
        await back_up(site.places, tmp_path / "backup")
    await emptied(site, f"DROP TABLE {GATEWAY}_version")
    with pytest.raises(BackupRefused, match=f"the database of {GATEWAY} (says no revision|has no tables)"):
        await back_up(site.places, tmp_path / "backup")


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_platform_is_backed_up_and_restored_by_its_own_tenant_alone(
    new_site: SiteMaker, tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, folder = await new_site("old", backend), await new_site("new", backend), tmp_path / "backup"
    for module in ("sql_store.tenants", "platform_backup.tables", "platform_backup.backup"):
        monkeypatch.setattr(f"{module}.OWN_TENANT", "acme")
    await old.fill()
    monkeypatch.setattr("platform_backup.tables.OWN_TENANT", "default")
    with pytest.raises(BackupRefused, match=r"belong to tenant 'acme', and this .* 'default'; set .*=acme"):
        await back_up(old.places, folder)
    monkeypatch.setattr("platform_backup.tables.OWN_TENANT", "acme")
    assert (await back_up(old.places, folder)).tenant == "acme"
    with pytest.raises(BackupRefused, match=r"is of tenant 'acme', and this .* 'default'; set .*=acme"):
        await restore(new.places, folder)
    monkeypatch.setattr("platform_backup.restore.OWN_TENANT", "acme")
    await restore(new.places, folder)
    assert (await new.content())["tables"] == (await old.content())["tables"]


async def test_a_backup_that_knows_no_tenants_keeps_its_digest(new_site: SiteMaker, tmp_path: Path) -> None:
    site, folder = await new_site("old"), tmp_path / "backup"
    await site.fill()
    await back_up(site.places, folder)
    written = json.loads((folder / manifest.FILE).read_text())
    assert "tenant" not in written
    assert manifest.read(folder).id == written["id"]
