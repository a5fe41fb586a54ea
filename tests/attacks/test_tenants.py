"""Two tenants: what one has is out of the other's reach, and nothing of one stands under another's name."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.attacks.conftest import UPCYCLE, Attacked, running_platform
from tests.local_servers import NatsServer
from tests.platform_recipes import EXAMPLE, HELD_OUT_TASKSET, MODEL

from blob_store import S3BlobStore
from event_bus.connection import plain_client
from event_bus.keys import seed_file
from event_bus.rights import OPERATOR, PROVISION, SERVICES
from event_bus.topology import DECISIONS, EVENTS
from identities.errors import InvalidIdentity
from identities.tenants import VARIABLE, tenant_of
from local_stack.credentials import load_or_make
from service_kit.groups import BusSettings, S3Settings

TENANTS = ("acme", "beta")
PROVISIONER = str(Path(sys.executable).parent / "upcycle-provision")
GRADE = "up.{tenant}.decision.outcome.incident.forged.graded"
PORT_OFFSET = 2900
COMMAND_S = 240


@dataclass(frozen=True, slots=True)
class Shared:
    """One NATS with the accounts of both tenants."""

    url: str
    keys: Path

    def settings(self, tenant: str, identity: str) -> BusSettings:
        return BusSettings(url=self.url, nkey=seed_file(self.keys / tenant, identity))


def run_as(tenant: str, *command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, VARIABLE: tenant, **variables}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=COMMAND_S, check=False)


def provision_as(tenant: str, shared: Shared, *, key_of: str) -> "subprocess.CompletedProcess[str]":
    key = str(seed_file(shared.keys / key_of, PROVISION))
    small = {"UPCYCLE_BUS_EPISODES_KEPT": "10000"}
    return run_as(tenant, PROVISIONER, UPCYCLE_BUS_URL=shared.url, UPCYCLE_BUS_NKEY=key, **small)


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[Shared]:
    """As the page about tenants says: keys for each, one server that includes both."""
    keys = tmp_path / "keys"
    for tenant in TENANTS:
        made = run_as(tenant, str(UPCYCLE), "bus", "keys", str(keys / tenant))
        assert made.returncode == 0, made.stderr
    entries = [(keys / tenant / "nats" / f"{tenant}.accounts").read_text() for tenant in TENANTS]
    async with NatsServer(tmp_path / "nats", accounts="accounts {\n" + "\n".join(entries) + "}") as server:
        running = Shared(server.url, keys)
        for tenant in TENANTS:
            done = await asyncio.to_thread(provision_as, tenant, running, key_of=tenant)
            assert done.returncode == 0, done.stderr
        yield running


async def stored(shared: Shared, tenant: str) -> dict[str, int]:
    """Messages in the tenant's streams, by stream."""
    client = await plain_client(shared.settings(tenant, OPERATOR), "eyes")
    try:
        streams = [await client.jetstream().stream_info(name) for name in (EVENTS, DECISIONS)]
        return {str(one.config.name): one.state.messages for one in streams}
    finally:
        await client.close()


async def test_no_key_of_a_tenant_reaches_the_streams_of_another(shared: Shared) -> None:
    """Whatever its holder publishes, under the name of either tenant."""
    for identity in (*SERVICES, OPERATOR, PROVISION):
        client = await plain_client(shared.settings("beta", identity), f"beta as {identity}")
        try:
            for tenant in TENANTS:
                id_of_it = {"Nats-Msg-Id": f"{tenant}/{identity}"}
                await client.publish(GRADE.format(tenant=tenant), b"{}", headers=id_of_it)
            await client.flush(timeout=5)
        finally:
            await client.close()

    assert await stored(shared, "acme") == {EVENTS: 0, DECISIONS: 0}
    assert (await stored(shared, "beta"))[DECISIONS] > 0  # the operator of beta may fill what is beta's


async def test_provisioning_refuses_the_account_of_another_tenant(shared: Shared) -> None:
    done = await asyncio.to_thread(provision_as, "acme", shared, key_of="beta")

    assert done.returncode != 0
    assert "belongs to tenant 'beta'" in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["Acme", "a.b", "a b", "request", "-a", "a" * 41, "a_b", "*"])
def test_a_name_that_would_mean_something_else_on_the_bus_is_refused(name: str) -> None:
    with pytest.raises(InvalidIdentity, match=VARIABLE):
        tenant_of({VARIABLE: name})


@pytest.fixture(scope="module")
def acme() -> Iterator[Attacked]:
    with running_platform(PORT_OFFSET, {VARIABLE: "acme"}) as running:
        where = {"UPCYCLE_UP_DATA_DIR": str(running.data_dir)}
        source = (str(EXAMPLE / "tasks.py"), MODEL, "--taskset", HELD_OUT_TASKSET, "--limit", "8", "--json")
        played = run_as("acme", str(UPCYCLE), "eval", *source, **where)
        assert played.returncode == 0, played.stderr[-3000:]
        yield running


@pytest.mark.study
@pytest.mark.timeout(600)
async def test_all_that_a_platform_writes_stands_under_its_tenant(acme: Attacked) -> None:
    """Rows, objects and messages of a run, from submission to grades."""
    bodies = await objects_of(acme)
    assert len([key for key in bodies if key.startswith("acme/trajectories/")]) == 8
    assert {key.partition("/")[0] for key in bodies} == {"acme"}

    rows = {name: tenants for path in acme.data_dir.rglob("*.sqlite") for name, tenants in rows_of(path)}
    assert {"run", "episodes", "checkpoint", "taskset"} <= rows.keys()
    assert {tenant for tenants in rows.values() for tenant in tenants} == {"acme"}

    assert {subject.split(".")[1] for subject in await subjects_of(acme)} == {"acme"}


@pytest.mark.study
@pytest.mark.timeout(300)
def test_a_platform_of_another_tenant_does_not_start_on_this_data(acme: Attacked, tmp_path: Path) -> None:
    copied = tmp_path / "registry.sqlite"
    ours = acme.data_dir / "sql" / "checkpoint_registry.sqlite"
    with closing(sqlite3.connect(ours)) as source, closing(sqlite3.connect(copied)) as target:
        source.backup(target)
    program = str(UPCYCLE.with_name("upcycle-checkpoint-registry"))
    refused = run_as("beta", program, UPCYCLE_SQL_URL=f"sqlite:///{copied}", UPCYCLE_ACCESS_OPEN="true")

    assert refused.returncode != 0
    assert "belong to tenant 'acme'" in refused.stdout + refused.stderr


def url_of(platform: Attacked, name: str) -> str:
    return str(next(one["url"] for one in platform.state["processes"] if one["name"] == name))


async def objects_of(platform: Attacked) -> list[str]:
    login = load_or_make(platform.data_dir)
    store = S3BlobStore(
        S3Settings(
            endpoint=url_of(platform, "s3").removeprefix("http://"),
            access_key=SecretStr(login.s3_access_key),
            secret_key=SecretStr(login.s3_secret_key),
        )
    )
    await store.start()
    try:
        return list(await store.list(""))
    finally:
        await store.stop()


async def subjects_of(platform: Attacked) -> set[str]:
    settings = BusSettings(url=url_of(platform, "nats"), nkey=seed_file(platform.data_dir / "bus", OPERATOR))
    client = await plain_client(settings, "eyes")
    try:
        found = [
            (await client.jetstream().stream_info(name, subjects_filter=">")).state.subjects or {}
            for name in (EVENTS, DECISIONS)
        ]
        return {subject for one in found for subject in one}
    finally:
        await client.close()


def rows_of(path: Path) -> Iterator[tuple[str, set[str]]]:
    """Table and tenants of its rows."""
    with closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            names = {row[1] for row in database.execute(f'PRAGMA table_info("{table}")')}
            if "tenant" in names:
                found = database.execute(f'SELECT DISTINCT tenant FROM "{table}"')  # noqa: S608
                yield table, {tenant for (tenant,) in found}
