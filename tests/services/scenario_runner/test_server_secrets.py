"""Secrets of MCP servers on the platform: who sets them, how they lie there, and what a run without one is
told."""

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
import sqlalchemy as sa
from tests.services.scenario_runner.conftest import Start
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

from scenario_runner.adapters.sealing import Sealer, SecretsKeyRefused
from scenario_runner.adapters.sql_secrets import SqlSecrets
from scenario_runner.domain.secrets import NoSecretsKey, StoredSecret, UnknownSecret
from sql_store import Database, MigratedDatabase
from sql_store.audit import entries
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
    assert await secrets.values(["TOKEN", "ABSENT"]) == {"TOKEN": CANARY}
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


async def test_a_run_needs_the_secret_and_its_episode_repeats_nothing_of_it(
    start_runner: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runner = await start_runner(access=KEYS, secrets_key_file=key_file(tmp_path), cell_files=(SERVER,))
    await register(runner, environment(tmp_path))
    missing = await refusal(submit(runner, run_spec(), "r1"))
    assert missing.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert NEEDED in str(missing.details())
    async with connect(runner.address, api_key=KEY) as channel:
        secrets = SecretServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as short:
            await secrets.SetSecret(pb.SetSecretRequest(name="TOKEN", value="abcde"))
        assert "abcde" not in str(short.value)
        made = await secrets.SetSecret(pb.SetSecretRequest(name="TOKEN", value=CANARY))
        listed = await secrets.ListSecrets(pb.ListSecretsRequest())
        assert list(listed.secrets) == [made.secret]
        assert (made.secret.name, made.secret.set_by) == ("TOKEN", "operator")
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
    assert CANARY not in f"{made} {listed} {opened} {caplog.text}"


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
