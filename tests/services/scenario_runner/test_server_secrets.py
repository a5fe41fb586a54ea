"""Secrets of MCP servers on the platform: who sets them, how they lie there, and what a run without one is
told."""

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from operator import methodcaller
from pathlib import Path
from typing import Any

import grpc
import pytest
import sqlalchemy as sa
from tests.services.scenario_runner.conftest import Runner, Start
from tests.services.scenario_runner.support import (
    announce_graded,
    arith,
    finished,
    refusal,
    register,
    run_spec,
    sampling,
    submit,
)
from tests.services.scenario_runner.test_deploying import ADAS_KEY, KEY, KEYS, SERVICE_KEY

from grpc_edge.access import Caller
from scenario_runner.adapters.sealing import Sealer, SecretsKeyRefused
from scenario_runner.adapters.sql_secrets import SqlSecrets
from scenario_runner.adapters.tables import SERVER_SECRET
from scenario_runner.domain.environments import EnvironmentBroken
from scenario_runner.domain.secrets import NoSecretsKey, SecretsOfOthers, StoredSecret, UnknownSecret
from scenario_runner.usecases.secrets import ManageSecrets, SecretValues
from service_kit.errors import InvalidRequest
from sql_store import Database, MigratedDatabase
from sql_store.audit import entries
from upcycle.api.common.v1.access_pb2 import Role
from upcycle.api.environment.v1 import service_pb2 as env_pb2
from upcycle.api.secrets.v1 import service_pb2 as pb
from upcycle.api.secrets.v1.service_pb2_grpc import SecretServiceStub
from upcycle.rpc import connect

CANARY = "canary-2f81c6"
NEEDED = (
    "names secret 'TOKEN' (MCP server 'keyed'), which this platform does not have: its operator sets it, "
    "`upcycle set secret TOKEN`"
)
TOKEN = StoredSecret("TOKEN", "operator", datetime(2026, 11, 27, 12, tzinfo=UTC))
SERVER = Path(__file__).parents[2] / "libs" / "upcycle" / "mcp_keyed.py"
FILE = """
import sys
from upcycle import Environment
env = Environment("arith")
env.connect_mcp_config({"keyed": {
    "command": sys.executable, "args": [SERVER], "env": {"KEYED_TOKEN": "${secret:TOKEN}"}}})
@env.scenario("sum")
async def sum(a: int = 0, b: int = 0):
    answer = yield (await env.call_tool("tell", {})).text
    yield 1.0
"""


def key_file(folder: Path, name: str = "secrets.key") -> Path:
    """A new key, as a stack makes one."""
    path = folder / name
    path.write_bytes(base64.b64encode(os.urandom(32)))
    path.chmod(0o600)
    return path


@pytest.fixture
async def database(sql_url: str) -> AsyncIterator[Database]:
    """The service's own."""
    made = MigratedDatabase(sql_url, "scenario_runner")
    await made.start()
    yield made
    await made.stop()


async def test_what_is_stored_is_sealed_and_who_set_it_is_in_the_log(
    database: Database, tmp_path: Path
) -> None:
    secrets = SqlSecrets(database, Sealer(key_file(tmp_path)))
    for value in ("first-value", CANARY):
        await secrets.put(TOKEN, value)
    await secrets.put(StoredSecret("OTHER", "key:x", TOKEN.set_at), "other-value")
    found = await secrets.values(["TOKEN", "ABSENT"])
    assert {name: one.value for name, one in found.items()} == {"TOKEN": CANARY}
    assert CANARY not in repr(found)
    assert [one.name for one in await secrets.all()] == ["OTHER", "TOKEN"]
    assert (await secrets.all())[1] == TOKEN
    await secrets.remove("OTHER", by="operator")
    with pytest.raises(UnknownSecret, match="no secret 'OTHER' is set"):
        await secrets.remove("OTHER", by="operator")
    noted = await entries(database, since=None, who="", after=0, limit=9)
    assert [(one.object, one.outcome) for one in noted] == [
        ("secret TOKEN", "set"),
        ("secret TOKEN", "set to another value"),
        ("secret OTHER", "set"),
        ("secret OTHER", "removed"),
    ]
    rows = await database.run(lambda sql: sql.execute(sa.text("select * from server_secret")).all())
    assert "canary" not in repr([*rows, *noted])


async def test_a_secret_of_environments_is_for_them_alone_until_the_operator_says_so(
    database: Database, tmp_path: Path
) -> None:
    store = SqlSecrets(database, Sealer(key_file(tmp_path)))
    manage, values = ManageSecrets(store, now=lambda: TOKEN.set_at), SecretValues(store)
    operator, named = Caller("operator", Role.ROLE_OPERATOR), {"TOKEN": "keyed"}
    done = await manage.put("TOKEN", "first-value", ["shop", "desk", "shop"], operator)
    assert done.environments == ("desk", "shop")
    assert await values("shop", named) == {"TOKEN": "first-value"}
    with pytest.raises(SecretsOfOthers, match=r"'other' names secret 'TOKEN' .*which is set for other envi"):
        await values("other", named)
    await manage.put("TOKEN", CANARY, [], operator)
    assert await values("shop", named) == {"TOKEN": CANARY}
    with pytest.raises(SecretsOfOthers):
        await values("other", named)  # a new value opens nothing
    await manage.put("TOKEN", CANARY, ["*"], operator)
    assert await values("other", named) == {"TOKEN": CANARY}
    noted = await entries(database, since=None, who="", after=0, limit=9)
    assert [one.outcome for one in noted] == [
        "set, for desk, shop",
        "set to another value, for desk, shop",
        "set to another value",
    ]
    for wrong in (["*", "shop"], ["two\nlines"], [""], [str(number) for number in range(101)]):
        with pytest.raises(InvalidRequest) as refused:
            await manage.put("TOKEN", CANARY, wrong, operator)
        assert CANARY not in str(refused.value)


async def test_who_writes_in_the_database_opens_no_secret_to_another_environment(
    database: Database, tmp_path: Path
) -> None:
    store = SqlSecrets(database, Sealer(key_file(tmp_path)))
    await store.put(replace(TOKEN, environments=("shop",)), CANARY)
    for written in (["other"], ["shop", "other"], []):
        change = sa.update(SERVER_SECRET).values(environments=written)
        await database.run(methodcaller("execute", change))
        with pytest.raises(EnvironmentBroken, match="secret 'TOKEN' was changed"):
            await SecretValues(store)("other", {"TOKEN": "keyed"})


async def test_a_row_that_was_moved_or_sealed_with_another_key_is_refused_by_name(
    database: Database, tmp_path: Path
) -> None:
    secrets = SqlSecrets(database, Sealer(key_file(tmp_path)))
    await secrets.put(TOKEN, CANARY)
    others = SqlSecrets(database, Sealer(key_file(tmp_path, "other.key")))
    with pytest.raises(SecretsKeyRefused, match="secret 'TOKEN' was sealed with another key"):
        await others.values(["TOKEN"])
    with pytest.raises(NoSecretsKey, match="SCENARIO_RUNNER_SECRETS_KEY_FILE names no file"):
        await SqlSecrets(database, None).values(["TOKEN"])
    await database.run(lambda sql: sql.execute(sa.text("update server_secret set name = 'MOVED'")))
    with pytest.raises(SecretsKeyRefused, match="secret 'MOVED' was changed"):
        await secrets.values(["MOVED"])


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (base64.b64encode(bytes(32)), 0o604, "other users can open the key of secrets"),
        (base64.b64encode(bytes(16)), 0o600, "does not hold 32 bytes in base64"),
        (b"?", 0o600, "does not hold 32 bytes in base64"),
    ],
)
def test_a_key_that_is_open_or_none_is_refused(tmp_path: Path, text: bytes, mode: int, said: str) -> None:
    path = tmp_path / "secrets.key"
    path.write_bytes(text)
    path.chmod(mode)
    with pytest.raises(SecretsKeyRefused, match=said):
        Sealer(path)
    with pytest.raises(SecretsKeyRefused, match="gone cannot be read: No such file"):
        Sealer(tmp_path / "gone")


def one_by_one(play: Any) -> Any:
    """Episodes in turn."""
    turn = asyncio.Lock()

    async def played(asked: Any) -> None:
        async with turn:
            await play(asked)

    return played


def environment(folder: Path) -> Any:
    """A taskset over an environment that names a secret."""
    (folder / "keyed_arith.py").write_text(FILE.replace("SERVER", repr(str(SERVER))))
    taskset = arith(1)
    taskset.environment.python.path = str(folder / "keyed_arith.py")
    return taskset


async def refused_by_name(runner: Runner, *expected: str) -> None:
    """No run begins without a secret of its environment."""
    error = await refusal(submit(runner, run_spec(), "r1"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert all(text in str(error.details()) for text in expected)


async def test_a_run_needs_the_secret_for_its_environment(
    start_runner: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runner = await start_runner(access=KEYS, secrets_key_file=key_file(tmp_path), cell_files=(SERVER,))
    await register(runner, environment(tmp_path))
    await refused_by_name(runner, NEEDED)
    async with connect(runner.address, api_key=KEY) as channel:
        secrets = SecretServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as short:
            await secrets.SetSecret(pb.SetSecretRequest(name="TOKEN", value="abcde"))
        assert "abcde" not in str(short.value)
        await secrets.SetSecret(pb.SetSecretRequest(name="TOKEN", value=CANARY, environments=["other"]))
        no_right = "environment 'arith' names secret 'TOKEN'"
        await refused_by_name(runner, no_right, "upcycle set secret TOKEN --environment")
        asked = pb.SetSecretRequest(name="TOKEN", value=CANARY, environments=["other", "arith"])
        made = await secrets.SetSecret(asked)
        listed = await secrets.ListSecrets(pb.ListSecretsRequest())
    assert list(listed.secrets) == [made.secret]
    assert (made.secret.name, made.secret.set_by) == ("TOKEN", "operator")
    assert list(made.secret.environments) == ["arith", "other"]
    assert CANARY not in f"{made} {listed} {caplog.text}"


async def test_an_episode_repeats_nothing_of_its_secret_and_needs_it(
    start_runner: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runner = await start_runner(access=KEYS, secrets_key_file=key_file(tmp_path), cell_files=(SERVER,))
    await register(runner, environment(tmp_path))
    async with connect(runner.address, api_key=KEY) as channel:
        secrets = SecretServiceStub(channel)
        await secrets.SetSecret(pb.SetSecretRequest(name="TOKEN", value=CANARY, environments=["arith"]))
        run = await submit(runner, run_spec(group_size=2), "r1")
        opened = list[Any]()

        async def play(asked: Any) -> None:
            request = env_pb2.OpenRequest(episode_id=asked.episode.episode_id)
            if opened:
                await secrets.RemoveSecret(pb.RemoveSecretRequest(name="TOKEN"))
                lost = await refusal(runner.environments.Open(request))
                assert NEEDED in str(lost.details())
            else:
                opened.append(await runner.environments.Open(request))
            await announce_graded(runner, asked, 1.0, True)

        async with sampling(runner, one_by_one(play)):
            await finished(runner, run.run_id)
    assert "Bearer [secret TOKEN]" in opened[0].prompt[0].content
    stored = b"".join(path.read_bytes() for path in (tmp_path / "sql").iterdir())
    assert b"server_secret" in stored
    assert CANARY.encode() not in stored
    assert CANARY not in f"{opened} {caplog.text}"


@pytest.mark.parametrize("key", [ADAS_KEY, SERVICE_KEY])
async def test_only_an_operator_touches_secrets(start_runner: Start, tmp_path: Path, key: str) -> None:
    runner = await start_runner(access=KEYS, secrets_key_file=key_file(tmp_path))
    calls = {
        "SetSecret": pb.SetSecretRequest(name="TOKEN", value=CANARY),
        "ListSecrets": pb.ListSecretsRequest(),
    }
    async with connect(runner.address, api_key=key) as channel:
        for name, request in calls.items():
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await getattr(SecretServiceStub(channel), name)(request)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_platform_without_a_key_says_how_to_get_one(start_runner: Start) -> None:
    runner = await start_runner(access=KEYS)
    async with connect(runner.address, api_key=KEY) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="keeps no secrets: SCENARIO_RUNNER_SECRETS_KEY_FILE"):
            await SecretServiceStub(channel).SetSecret(pb.SetSecretRequest(name="TOKEN", value=CANARY))
