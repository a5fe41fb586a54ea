"""The key that secrets are encrypted with is replaced while the platform goes on; the old one opens nothing
afterwards."""

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
import sqlalchemy as sa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tests.services.scenario_runner.conftest import Start
from tests.services.scenario_runner.test_deploying import ADAS_KEY, KEY, KEYS, SERVICE_KEY
from tests.services.scenario_runner.test_server_secrets import CANARY, TOKEN, key_file

from scenario_runner.adapters.sealing import Sealer, SecretsKeyRefused
from scenario_runner.adapters.sql_secrets import SqlSecrets
from scenario_runner.domain.secrets import NoSecretsKey, Rotation, StoredSecret
from sql_store import Database, MigratedDatabase
from sql_store.audit import entries
from upcycle.api.secrets.v1 import service_pb2 as pb
from upcycle.api.secrets.v1.service_pb2_grpc import SecretServiceStub
from upcycle.rpc import connect

OTHER = StoredSecret("OTHER", "key:x", datetime(2026, 11, 28, 12, tzinfo=UTC), ("shop",))


@pytest.fixture
async def database(sql_url: str) -> AsyncIterator[Database]:
    """The service's own."""
    made = MigratedDatabase(sql_url, "scenario_runner")
    await made.start()
    yield made
    await made.stop()


QUERY = sa.text("select * from server_secret")


async def opened_with(database: Database, key: Path) -> list[str]:
    """Names of the secrets that a thief of a key and of the database reads."""
    cipher, found = AESGCM(base64.b64decode(await asyncio.to_thread(key.read_bytes))), list[str]()
    rows = await database.run(lambda sql: sql.execute(QUERY).mappings().all())
    for row in rows:
        names = {"TOKEN": [], "OTHER": ["shop"]}[row["name"]]
        bound = "\0".join([row["tenant"], row["name"], *names]).encode()
        try:
            cipher.decrypt(row["sealed"][:12], row["sealed"][12:], bound)
        except InvalidTag:
            continue
        found.append(row["name"])
    return sorted(found)


async def test_a_stolen_key_opens_nothing_once_it_was_replaced(database: Database, tmp_path: Path) -> None:
    old, new = key_file(tmp_path, "old.key"), key_file(tmp_path, "new.key")
    before = SqlSecrets(database, Sealer(old))
    await before.put(TOKEN, CANARY)
    await before.put(OTHER, "other-value")
    assert await opened_with(database, old) == ["OTHER", "TOKEN"]
    both = SqlSecrets(database, Sealer(new, [old]))
    assert (await both.values(["TOKEN"]))["TOKEN"].value == CANARY  # read while old ones are there
    done = await both.rotate(by="operator")
    assert done == Rotation(2, 2, Sealer(new).key_id)
    assert await opened_with(database, old) == []
    assert await opened_with(database, new) == ["OTHER", "TOKEN"]
    after = SqlSecrets(database, Sealer(new))
    found = await after.values(["TOKEN", "OTHER"])
    assert {name: one.value for name, one in found.items()} == {"TOKEN": CANARY, "OTHER": "other-value"}
    assert await after.all() == [OTHER, TOKEN]  # who set them, when and for whom stays
    assert await after.rotate(by="operator") == Rotation(0, 2, done.key_id)
    noted = [one.outcome for one in await entries(database, since=None, who="", after=0, limit=9)]
    assert noted[-2:] == [
        f"2 encrypted anew, with key {done.key_id}",
        f"0 encrypted anew, with key {done.key_id}",
    ]


async def test_nothing_is_written_with_an_old_key(database: Database, tmp_path: Path) -> None:
    old, new = key_file(tmp_path, "old.key"), key_file(tmp_path, "new.key")
    await SqlSecrets(database, Sealer(new, [old])).put(TOKEN, CANARY)
    assert await opened_with(database, old) == []


async def test_one_that_no_key_opens_is_named_and_nothing_is_changed(
    database: Database, tmp_path: Path
) -> None:
    """Half a rotation would leave secrets that only the operator's memory of keys can tell apart."""
    old, lost, new = (key_file(tmp_path, f"{name}.key") for name in ("old", "lost", "new"))
    await SqlSecrets(database, Sealer(old)).put(OTHER, "other-value")
    await SqlSecrets(database, Sealer(lost)).put(TOKEN, CANARY)
    with pytest.raises(SecretsKeyRefused, match=r"'TOKEN' was sealed with another key.*OLD_KEY_FILES"):
        await SqlSecrets(database, Sealer(new, [old])).rotate(by="operator")
    assert await opened_with(database, old) == ["OTHER"]
    assert await opened_with(database, new) == []
    with pytest.raises(NoSecretsKey):
        await SqlSecrets(database, None).rotate(by="operator")


async def test_an_old_key_that_others_can_open_is_refused(tmp_path: Path) -> None:
    old, new = key_file(tmp_path, "old.key"), key_file(tmp_path, "new.key")
    old.chmod(0o604)
    with pytest.raises(SecretsKeyRefused, match=f"other users can open the key of secrets {old}"):
        Sealer(new, [old])


async def test_an_operator_alone_rotates_over_the_port(start_runner: Start, tmp_path: Path) -> None:
    old, new = key_file(tmp_path, "old.key"), key_file(tmp_path, "new.key")
    runner = await start_runner(access=KEYS, secrets_key_file=new, secrets_old_key_files=(old,))
    for key in (ADAS_KEY, SERVICE_KEY):
        async with connect(runner.address, api_key=key) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await SecretServiceStub(channel).RotateSecrets(pb.RotateSecretsRequest())
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    async with connect(runner.address, api_key=KEY) as channel:
        secrets = SecretServiceStub(channel)
        await secrets.SetSecret(pb.SetSecretRequest(name="TOKEN", value=CANARY))
        done = await secrets.RotateSecrets(pb.RotateSecretsRequest())
    assert (done.num_rotated, done.num_secrets, done.key_id) == (0, 1, Sealer(new).key_id)
