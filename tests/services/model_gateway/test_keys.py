"""API keys: made, checked, scoped, revoked."""

import asyncio
import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from sqlalchemy import inspect
from tests.postgres import PROGRAMS, PostgresServer
from tests.services.model_gateway.conftest import KEY, Gateway
from tests.services.model_gateway.engine_double import EngineDouble, engine
from tests.support.command_line import NO_PEERS, run_upcycle, without_settings

from grpc_edge import GrpcServer, Peer
from grpc_edge.access import OPEN
from grpc_edge.issued_keys import IssuedKeys, sha256_of
from grpc_edge.key_follower import RemoteKeys
from model_gateway.adapters.database import BadBootstrapKey, GatewayDatabase
from model_gateway.adapters.sql_keys import SqlKeyStore
from model_gateway.cli import run_command
from model_gateway.domain.calls import read_target
from model_gateway.domain.errors import KeysUnavailable, NotAllowed, NotAuthenticated
from model_gateway.domain.keys import bearer_text, check, parse_key
from model_gateway.usecases.access import KeyAccess
from sql_store import Database
from upcycle.api.common.v1.access_pb2 import ROLE_USER
from upcycle.api.keys.v1 import service_pb2 as pb
from upcycle.api.keys.v1.service_pb2_grpc import KeyServiceServicer, add_KeyServiceServicer_to_server

TASKS = """
from upcycle import Environment

env = Environment("echo")


@env.scenario("say")
def say(word: str):
    answer = yield f"Say {word}"
    yield float(answer == word)


tasks = [say.task(slug="a", word="a")]
"""
ASK: Any = [{"role": "user", "content": "why?"}]
NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture
async def keys(sql_url: str) -> AsyncIterator[SqlKeyStore]:
    database = GatewayDatabase(sql_url, now=lambda: NOW)
    await database.start()
    yield SqlKeyStore(database)
    await database.stop()


@pytest.fixture
async def served(gateway: Gateway) -> AsyncIterator[EngineDouble]:
    async with engine() as double:
        for model in ("incident", "other"):
            gateway.registry.head(model, 0)
        gateway.registry.lease(double)
        yield double


async def test_a_key_opens_only_with_its_own_secret(keys: SqlKeyStore) -> None:
    key, text = await keys.create("ci", scopes=["inference"], models=[], now=NOW)
    presented = parse_key(bearer_text(f"Bearer {text}"))
    assert check(presented, await keys.find(presented.key_id)) == key
    wrong = parse_key(text[:-4] + "0000")
    with pytest.raises(NotAuthenticated):
        check(wrong, await keys.find(wrong.key_id))


async def test_the_secret_is_not_stored(keys: SqlKeyStore) -> None:
    key, text = await keys.create("ci", scopes=["inference"], models=[], now=NOW)
    secret = parse_key(text).secret
    assert secret not in str(key)
    assert key.secret_sha256 == hashlib.sha256(secret.encode()).hexdigest()


async def test_a_revoked_key_is_refused(keys: SqlKeyStore) -> None:
    key, text = await keys.create("ci", scopes=["inference"], models=[], now=NOW)
    assert await keys.revoke(key.key_id, NOW)
    assert not await keys.revoke(key.key_id, NOW)
    with pytest.raises(NotAuthenticated):
        check(parse_key(text), await keys.find(key.key_id))


async def test_known_keys_outlive_an_outage_of_the_database(keys: SqlKeyStore) -> None:
    key, _ = await keys.create("ci", scopes=["inference"], models=[], now=NOW)
    assert await keys.find(key.key_id) == key
    await keys._db.stop()
    keys._remembered[key.key_id] = (0.0, key)
    assert await keys.find(key.key_id) == key
    with pytest.raises(KeysUnavailable):
        await keys.find("stranger1234")


async def test_a_stranger_who_sends_many_wrong_keys_pushes_no_key_out_of_the_memory(
    keys: SqlKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model_gateway.adapters.sql_keys._MAX_REMEMBERED", 8)
    key, _ = await keys.create("ci", scopes=["inference"], models=[], now=NOW)
    assert await keys.find(key.key_id) == key
    for number in range(50):
        assert await keys.find(f"stranger{number:04}") is None
    assert len(keys._unknown) == 8
    await keys._db.stop()
    assert await keys.find("stranger0049") is None, "remembered, too"
    keys._remembered[key.key_id] = (0.0, keys._remembered[key.key_id][1])
    assert await keys.find(key.key_id) == key


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Basic abc", "Bearer sk-123", "Bearer up_x_y", f"Bearer {KEY} extra"]
)
def test_what_is_no_key_is_not_authenticated(header: str | None) -> None:
    with pytest.raises(NotAuthenticated):
        parse_key(bearer_text(header))


async def test_a_wrong_key_is_401_in_openais_envelope(gateway: Gateway, served: EngineDouble) -> None:
    wrong = KEY[:-1] + "X"
    for key in (wrong, "up_unknown12345_" + "a" * 32, "sk-openai"):
        with pytest.raises(openai.AuthenticationError) as refused:
            await gateway.client(key).chat.completions.create(model="incident", messages=ASK)
        assert refused.value.code == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError):
            await gateway.client(key).models.list()
    assert served.requests == []


async def test_a_key_is_bound_to_its_models_and_scopes(gateway: Gateway, served: EngineDouble) -> None:
    database = Database(gateway.settings.sql.url_for("model_gateway"))
    store = SqlKeyStore(database)
    _, narrow = await store.create("narrow", scopes=["inference"], models=["other"], now=NOW)
    _, admin = await store.create("admin", scopes=["admin"], models=[], now=NOW)
    await database.stop()
    client = gateway.client(narrow)
    with pytest.raises(openai.PermissionDeniedError, match="may not use model 'incident'"):
        await client.chat.completions.create(model="incident@v0", messages=ASK)
    assert [card.id for card in (await client.models.list()).data] == ["other"]
    with pytest.raises(openai.PermissionDeniedError, match="lacks the scope"):
        await gateway.client(admin).chat.completions.create(model="incident", messages=ASK)


@pytest.mark.parametrize("changes", [{"max_body_bytes": 1000}])
async def test_a_body_beyond_the_limit_is_413(
    gateway: Gateway, served: EngineDouble, changes: dict[str, Any]
) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        await gateway.client().chat.completions.create(
            model="incident", messages=[{"role": "user", "content": "x" * 2000}]
        )
    assert refused.value.status_code == 413


async def test_bodies_that_are_no_json_are_400(gateway: Gateway, served: EngineDouble) -> None:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:
        for body in (b"", b"{", b"[]", b'"x"', b"\xff"):
            reply = await session.post(f"{gateway.url}/v1/chat/completions", data=body)
            assert reply.status == 400, body
            assert (await reply.json())["error"]["type"] == "invalid_request_error"


async def test_a_bootstrap_file_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "gateway.key"
    texts = []
    for _ in range(2):
        url = f"sqlite:///{tmp_path / 'keys.sqlite'}"
        database = GatewayDatabase(url, bootstrap_key_file=path, now=lambda: NOW)
        store = SqlKeyStore(database)
        await database.start()
        presented = parse_key(path.read_text().strip())
        assert check(presented, await store.find(presented.key_id)).scopes == {"inference", "admin"}
        await database.stop()
        texts.append(path.read_text())
    assert texts[0] == texts[1]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_malformed_bootstrap_key_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.sqlite'}"
    database = GatewayDatabase(url, bootstrap_key="secret", now=lambda: NOW)
    with pytest.raises(BadBootstrapKey, match="MODEL_GATEWAY_BOOTSTRAP_KEY"):
        await database.start()
    await database.stop()


@pytest.mark.parametrize(
    "command",
    [
        ["create-key", "--name", "ci"],
        ["list-keys"],
        ["revoke-key", "a"],
        ["set-capture", "a", "on"],
        ["set-limits", "a"],
    ],
)
def test_a_command_makes_no_database_of_its_own(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UPCYCLE_SQL_DATA_DIR", str(tmp_path / "sql"))
    assert run_command(command) == 2
    said = capsys.readouterr()
    assert said.out == ""
    file = tmp_path / "sql" / "model_gateway.sqlite"
    assert f"there is no database of a gateway at {file}, and none was made; UPCYCLE_SQL_DATA_DIR" in said.err
    assert "UPCYCLE_SQL_URL" in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not PROGRAMS, reason="no Postgres programs on this machine")
async def test_a_command_makes_no_tables_in_a_database_that_no_gateway_has_opened(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UPCYCLE_SQL_URL", postgres_server.database())
    assert await asyncio.to_thread(run_command, ["create-key", "--name", "ci"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "there is no database of a gateway at postgresql" in said.err
    assert "makes its tables when it starts" in said.err
    database = Database(os.environ["UPCYCLE_SQL_URL"])
    assert await database.run(lambda connection: inspect(connection).get_table_names()) == []
    await database.stop()
    gateways = GatewayDatabase(os.environ["UPCYCLE_SQL_URL"], now=lambda: NOW)
    await gateways.start()
    await gateways.stop()
    assert await asyncio.to_thread(run_command, ["create-key", "--name", "ci"]) == 0
    assert capsys.readouterr().out.startswith("up_")


def test_the_command_makes_lists_and_revokes_a_key_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UPCYCLE_SQL_DATA_DIR", str(tmp_path))
    started_once(tmp_path)
    assert run_command(["create-key", "--name", "ci", "--models", "incident"]) == 0
    made = capsys.readouterr()
    key_id, database = (
        parse_key(made.out.strip()).key_id,
        f"sqlite+pysqlite:///{tmp_path}/model_gateway.sqlite",
    )
    assert f"key {key_id} of ci is in the database {database}, and valid at the gateway of that" in made.err
    assert run_command(["list-keys"]) == 0
    assert json.loads(capsys.readouterr().out)["models"] == ["incident"]
    assert run_command(["revoke-key", key_id]) == 0
    assert run_command(["revoke-key", key_id]) == 1
    assert f"in the database {database}" in capsys.readouterr().err
    assert run_command(["create-key", "--name", "x", "--scopes", "root"]) == 2
    assert run_command(["create-key", "--name", "x", "--models", "incident@v1"]) == 2
    assert "slugs without a version" in capsys.readouterr().err


def started_once(folder: Path) -> None:
    """A gateway has made its database here."""

    async def start() -> None:
        database = GatewayDatabase(f"sqlite:///{folder / 'model_gateway.sqlite'}", now=lambda: NOW)
        await database.start()
        await database.stop()

    asyncio.run(start())


def test_the_program_knows_its_commands(tmp_path: Path) -> None:
    started_once(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "model_gateway.app", "create-key", "--name", "ci"],
        env={**os.environ, "UPCYCLE_SQL_DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert parse_key(done.stdout.strip()).key_id


async def test_a_wrong_key_ends_an_evaluation_through_the_gateway_before_it_begins(
    gateway: Gateway, served: EngineDouble, tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    own = {"UPCYCLE_PEERS_GATEWAY": gateway.url.removeprefix("http://"), "UPCYCLE_API_KEY": f"{KEY[:-1]}a"}
    env = {**without_settings(), **NO_PEERS, **own}
    status, _, said = await run_upcycle("eval", "tasks.py", "incident", "--gateway", env=env, cwd=tmp_path)
    assert (status, said) == (
        2,
        f"upcycle: the gateway at {gateway.url}/v1 answered 401; set the key of this platform in "
        "UPCYCLE_API_KEY\n",
    )
    assert ".upcycle" not in os.listdir(tmp_path)


class IssuingRegistry(KeyServiceServicer):
    """A registry that issued these keys, by their text."""

    def __init__(self, valid: dict[str, list[str]]) -> None:
        self.valid = valid

    async def ListValidKeys(self, request: pb.ListValidKeysRequest, context: Any) -> pb.ListValidKeysResponse:
        keys = [
            pb.ValidKey(
                sha256=sha256_of(text), key_id=text.split("_")[1], name="ada", role=ROLE_USER, scopes=scopes
            )
            for text, scopes in self.valid.items()
        ]
        return pb.ListValidKeysResponse(digest=repr(self.valid), keys=keys)


ISSUED, NARROW, PLATFORM_ONLY = (f"upk_{name}_{'x' * 43}" for name in ("all", "narrow", "platform"))


async def test_keys_that_the_registry_issued_are_taken_with_their_scopes() -> None:
    scopes = {ISSUED: ["inference", "platform"], NARROW: ["inference:other"], PLATFORM_ONLY: ["platform"]}
    issuing = IssuingRegistry(scopes)  # type: ignore[abstract]
    server = GrpcServer("127.0.0.1", 0, OPEN).add(add_KeyServiceServicer_to_server, issuing)
    await server.start()
    peer = Peer("keys", server.address)
    issued = IssuedKeys(RemoteKeys(peer))
    store = SqlKeyStore(Database("sqlite://"))
    access = KeyAccess(store, issued)
    try:
        with pytest.raises(KeysUnavailable, match="not asked yet"):
            await access.authenticate(None, ISSUED)
        await issued.refresh()
        access.allow_inference(await access.authenticate(f"Bearer {ISSUED}"), read_target("incident"))
        narrow = await access.authenticate(None, NARROW)
        access.allow_inference(narrow, read_target("other"))
        with pytest.raises(NotAllowed, match="may not use model 'incident'"):
            access.allow_inference(narrow, read_target("incident"))
        with pytest.raises(NotAllowed, match="lacks the scope"):
            access.allow_inference(await access.authenticate(None, PLATFORM_ONLY), read_target("other"))
        with pytest.raises(NotAuthenticated):
            await access.authenticate(f"Bearer {ISSUED}x")
        del issuing.valid[ISSUED]
        await issued.refresh()
        with pytest.raises(NotAuthenticated):
            await access.authenticate(f"Bearer {ISSUED}")
    finally:
        await peer.stop()
        await server.stop()
