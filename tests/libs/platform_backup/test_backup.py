"""A backup is the platform again, or is refused; an interruption leaves nothing that looks whole."""

import asyncio
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import ConsumerConfig
from tests.libs.platform_backup.conftest import FACT, OBJECTS, Site, SiteMaker, decision, store_of
from tests.postgres import BACKENDS

from blob_store.provision import RESTORE_MARKER, RestoreUnfinished, refuse_unfinished_restore
from event_bus.provision import provision
from event_bus.topology import DECISIONS, EVENTS, TRAJECTORY_STORE_LEDGER
from platform_backup import objects, streams, tables
from platform_backup.backup import back_up
from platform_backup.errors import BackupDamaged, BackupFailed, BackupRefused
from platform_backup.manifest import BEGUN, FILE, read
from platform_backup.places import places_from_environment
from platform_backup.restore import restore
from sql_store.database import Database
from sql_store.logins import SERVICES


def with_one_more(stream: tuple[Any, Any]) -> tuple[Any, Any]:
    """A stream's description when it has one more copy of a grade, which its readers have yet to read."""
    (first, last, messages), readers = stream
    pending = {
        name: (floor, unread + any("trajectory.graded" in one for one in filters), filters)
        for name, (floor, unread, filters) in readers.items()
    }
    return (first, last + 1, messages + 1), pending


def assert_restored(before: dict[str, Any], after: dict[str, Any]) -> None:
    # Five facts, two copies of decisions, and the last copy once more.
    assert after["streams"].pop(EVENTS) == with_one_more(before["streams"].pop(EVENTS))
    assert after == before


async def write_a_row(site: Site) -> int:
    """The number that the outbox gives to its next event."""
    database = Database(site.places.databases["trajectory_store"])
    await database.start()
    insert = (
        "INSERT INTO outbox (stream, subject, event_id, schema, payload, trace)"
        " VALUES ('s', 's', 'next', 's', '', '{}') RETURNING id"
    )
    given = await database.run(lambda connection: connection.exec_driver_sql(insert).scalar_one())
    await database.stop()
    return int(given)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_restored_platform_is_the_one_that_was_backed_up_and_goes_on(
    new_site: SiteMaker, tmp_path: Path, backend: str
) -> None:
    old, new, folder = await new_site("old", backend), await new_site("new", backend), tmp_path / "backup"
    await old.fill()

    made = await back_up(old.places, folder)
    done = await restore(new.places, folder)

    assert done.id == made.id
    assert (made.num_objects, made.object_bytes) == (4, 5 + 5 + 0 + 300_000)
    before, after = await old.content(), await new.content()
    assert set(before["streams"]) == {"TASKS", "EVENTS", "DECISIONS", "DLQ", "ATTEMPTS", "ADVISORIES"}
    assert after["objects"] == OBJECTS
    assert_restored(before, after)
    changed = await provision(new.places.bus)
    assert (changed.created, changed.updated) == ([], [])

    client = await nats.connect(new.places.bus.url)
    jetstream = client.jetstream()
    # The two facts that were acknowledged do not come again, the others do.
    reader = await jetstream.pull_subscribe_bind(TRAJECTORY_STORE_LEDGER.durable, EVENTS)
    assert [one.metadata.sequence.stream for one in await reader.fetch(2, timeout=10)] == [3, 4]
    # A decision that stood still stands; a new one is copied, once.
    assert (await jetstream.get_last_msg(DECISIONS, decision("e1"))).seq == 2
    await jetstream.publish(decision("e2"), b"{}")
    while (await jetstream.stream_info(EVENTS)).state.messages < 9:
        await asyncio.sleep(0.02)
    await jetstream.publish(FACT, b"{}")
    assert (await jetstream.stream_info(EVENTS)).state.last_seq == 10
    await client.close()
    # Numbers 1 and 2 are held, 3 was given and is gone: SQLite gives it again only if it did so before.
    assert await write_a_row(new) == await write_a_row(old)


async def test_what_a_reader_noted_is_of_the_restored_stream(new_site: SiteMaker, tmp_path: Path) -> None:
    old, new, folder = await new_site("old"), await new_site("new"), tmp_path / "backup"
    await old.fill()
    client = await nats.connect(old.places.bus.url)
    created = (await client.jetstream().stream_info(EVENTS)).created
    assert created is not None
    note = '{"created": "%s", "sequence": 2}'
    subject = "up.default.attempt.%s.EVENTS.place"
    await client.jetstream().publish(subject % "mine", (note % created.isoformat()).encode())
    await client.jetstream().publish(subject % "other", (note % "2020-01-01T00:00:00+00:00").encode())
    await client.close()

    await back_up(old.places, folder)
    await restore(new.places, folder)

    client = await nats.connect(new.places.bus.url)
    jetstream = client.jetstream()
    now = (await jetstream.stream_info(EVENTS)).created
    assert now is not None
    mine = await jetstream.get_last_msg("ATTEMPTS", subject % "mine")
    assert (mine.data or b"").decode() == note % now.isoformat()
    # One that began with yet another stream lost something, and still says so.
    other = await jetstream.get_last_msg("ATTEMPTS", subject % "other")
    assert b"2020" in (other.data or b"")
    await client.close()


async def test_a_platform_that_runs_is_not_backed_up(new_site: SiteMaker, tmp_path: Path) -> None:
    site = await new_site("old")
    await provision(site.places.bus)
    client = await nats.connect(site.places.bus.url)
    reader = await client.jetstream().pull_subscribe(
        "up.default.evt.never.said.m",
        durable="someone",
        stream=EVENTS,
        config=ConsumerConfig(filter_subject="up.default.evt.never.said.m"),
    )
    waits = asyncio.create_task(reader.fetch(1, timeout=60))
    while not (await reader.consumer_info()).num_waiting:
        await asyncio.sleep(0.02)

    with pytest.raises(BackupRefused, match="the platform runs: someone reads EVENTS; stop every service"):
        await back_up(site.places, tmp_path / "backup")

    assert not (tmp_path / "backup").exists()
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    await client.close()


@pytest.mark.skipif("postgres" not in BACKENDS, reason="no Postgres programs on this machine")
async def test_a_service_that_uses_a_database_is_at_work(new_site: SiteMaker, tmp_path: Path) -> None:
    site = await new_site("old", "postgres")
    await provision(site.places.bus)
    database = Database(site.places.databases["model_gateway"])
    await database.start()

    with pytest.raises(BackupRefused, match="1 sessions use the database of model_gateway"):
        await back_up(site.places, tmp_path / "backup")
    await database.stop()


async def test_a_platform_that_changed_meanwhile_gives_no_backup(
    new_site: SiteMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, folder = await new_site("old"), tmp_path / "backup"
    await site.fill()
    client = await nats.connect(site.places.bus.url)
    saved = objects.save

    async def save_beside_a_fact(*arguments: Any) -> Any:
        await client.jetstream().publish(FACT, b"{}")
        return await saved(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(objects, "save", save_beside_a_fact)
        with pytest.raises(BackupFailed, match="changed while it was copied"):
            await back_up(site.places, folder)
    await client.close()

    with pytest.raises(BackupRefused, match="was not finished; repeat `upcycle backup`"):
        read(folder)
    await back_up(site.places, folder)  # the same folder takes the repetition
    assert read(folder).num_objects == 4
    assert not (folder / BEGUN).exists()
    with pytest.raises(BackupRefused, match="holds a backup; name a new folder"):
        await back_up(site.places, folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    with pytest.raises(BackupRefused, match="not empty, and not an unfinished backup"):
        await back_up(site.places, tmp_path / "mine")


async def hold(site: Site, what: str) -> str:
    """Make a new platform hold one thing; what a restore says about it."""
    match what:
        case "objects":
            async with store_of(site.places) as store:
                await store.put("mine", b"1")
            return "holds 1 objects, mine first"
        case "tables":
            database = Database(site.places.databases["model_gateway"])
            await database.start()
            await database.run(lambda connection: connection.exec_driver_sql("CREATE TABLE mine (a INT)"))
            await database.stop()
            return "database of model_gateway has tables: mine"
        case _:
            await provision(site.places.bus)
            client = await nats.connect(site.places.bus.url)
            await client.jetstream().publish(FACT, b"{}")
            await client.close()
            return "stream EVENTS has 1 messages"


async def test_a_platform_that_holds_something_is_not_restored_over(
    new_site: SiteMaker, tmp_path: Path
) -> None:
    old, folder = await new_site("old"), tmp_path / "backup"
    await old.fill()
    await back_up(old.places, folder)
    for what in ("objects", "tables", "streams"):
        new = await new_site("new")
        said = await hold(new, what)
        before = await new.content()

        with pytest.raises(BackupRefused, match=said):
            await restore(new.places, folder)

        assert await new.content() == before


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


async def test_a_damaged_backup_is_named_before_anything_is_changed(
    new_site: SiteMaker, tmp_path: Path
) -> None:
    old, new, folder = await new_site("old"), await new_site("new"), tmp_path / "backup"
    await old.fill()
    await back_up(old.places, folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    weights = max((path for path in files if "objects" in path.parts), key=lambda path: path.stat().st_size)
    manifest = (folder / FILE).read_bytes()
    damages = [
        (weights, flipped(weights.read_bytes())),
        (weights, None),
        (folder / "streams" / "EVENTS", b""),
        (folder / "databases" / "model_gateway.sqlite", b"SQLite format 3"),
        (folder / "objects.jsonl", flipped((folder / "objects.jsonl").read_bytes())),
        (folder / FILE, manifest[: len(manifest) // 2]),
        (folder / FILE, manifest.replace(b'"num_objects": 4', b'"num_objects": 3')),
    ]
    for path, damage in damages:
        whole = path.read_bytes()
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
        with pytest.raises(BackupDamaged, match=str(path.relative_to(folder))) as raised:
            await restore(new.places, folder)
        assert ("object default/weights/with space" in str(raised.value)) == (path == weights)
        path.write_bytes(whole)
    held = await new.content()
    assert (held["streams"], held["objects"], held["tables"]["model_gateway"]) == ({}, {}, {})
    with pytest.raises(BackupRefused, match="holds no backup"):
        await restore(new.places, tmp_path)


async def test_an_interrupted_restore_is_no_platform_and_goes_on_when_repeated(
    new_site: SiteMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, folder = await new_site("old"), tmp_path / "backup"
    await old.fill()
    await back_up(old.places, folder)
    for part, whole_before in ((objects, 0), (tables, 2), (streams, 1)):
        new, left, real = await new_site("new"), [True] * whole_before, part.load

        async def power_cut(*arguments: Any, left: list[bool] = left, real: Any = real) -> None:
            if not left:
                raise OSError("power cut")
            left.pop()
            await real(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(part, "load", power_cut)
            with pytest.raises(OSError, match="power cut"):
                await restore(new.places, folder)
        with pytest.raises(RestoreUnfinished, match="was not finished; repeat the same `upcycle restore`"):
            await asyncio.to_thread(refuse_unfinished_restore, new.places.s3)

        await restore(new.places, folder)

        await asyncio.to_thread(refuse_unfinished_restore, new.places.s3)
        before, after = await old.content(), await new.content()
        assert RESTORE_MARKER not in after["objects"]
        assert_restored(before, after)


async def test_an_interrupted_restore_is_finished_by_its_own_backup_alone(
    new_site: SiteMaker, tmp_path: Path
) -> None:
    old, new = await new_site("old"), await new_site("new")
    await old.fill()
    await back_up(old.places, tmp_path / "backup")
    async with store_of(new.places) as store:
        await store.put(RESTORE_MARKER, b'{"backup": "another"}')

    with pytest.raises(BackupRefused, match="a restore of another backup, another, was interrupted here"):
        await restore(new.places, tmp_path / "backup")


def test_one_database_for_all_services_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPCYCLE_BUS_URL", "nats://127.0.0.1:1")
    monkeypatch.setenv("UPCYCLE_SQL_URL", "postgresql://upcycle@db/scenario_runner")
    with pytest.raises(BackupRefused, match="UPCYCLE_SQL_URL names one database"):
        places_from_environment()
    monkeypatch.setenv("UPCYCLE_SQL_URL", "postgresql://upcycle@db/{service}")
    places = places_from_environment()
    assert places is not None
    assert {url.get_secret_value() for url in places.databases.values()} == {
        f"postgresql://upcycle@db/{service}" for service in SERVICES
    }
