"""Usage by day, key and model: hand-worked sums, who sees whose, and the command that prints them."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from tests.services.model_gateway.conftest import KEY, Gateway
from tests.services.model_gateway.engine_double import EngineDouble
from tests.services.model_gateway.test_usage_rows import row
from tests.support.command_line import NO_PEERS, run_upcycle, without_settings

from grpc_edge.issued_keys import IssuedKey
from model_gateway.adapters import sql_usage
from model_gateway.adapters.sql_keys import SqlKeyStore
from model_gateway.adapters.sql_usage import SqlUsage, SqlUsageSink
from model_gateway.domain.errors import BadRequest
from model_gateway.domain.keys import ADMIN, ApiKey, issued_key
from model_gateway.domain.usage_reports import UsageQuery, read_query
from sql_store import Database, MigratedDatabase
from upcycle.api.common.v1.access_pb2 import Role

DAY = datetime(2026, 11, 22, tzinfo=UTC)
NIGHT = DAY + timedelta(hours=23, minutes=59)
OWNER = "bootstrapkey1"


@pytest.fixture
async def database(sql_url: str) -> AsyncIterator[MigratedDatabase]:
    """Of two keys: `a` asked `incident` three times, once in vain, over midnight, and `acme/large` once; `b`
    asked `incident` once."""
    database = MigratedDatabase(sql_url, "model_gateway")
    await database.start()
    sink = SqlUsageSink(database)
    used: dict[str, Any] = {"prompt_tokens": 10, "completion_tokens": 2, "key_id": "a", "started_at": NIGHT}
    for one in (
        replace(row(1), **used),
        replace(row(2), **{**used, "started_at": NIGHT + timedelta(minutes=2)}),
        replace(row(3, status=429), key_id="a", started_at=NIGHT),
        replace(row(4, model="acme/large"), **used, cost=0.5),
        replace(row(5), **{**used, "key_id": "b"}, cost=0.125),
        replace(row(6), **{**used, "started_at": DAY - timedelta(days=30)}),
    ):
        sink.add(one)
    await sink.flush()
    yield database
    await database.stop()


async def table(database: Database, *by: str, key_id: str | None = None) -> list[tuple[Any, ...]]:
    rows = await SqlUsage(database).report(UsageQuery(DAY, by, key_id))
    return [
        (
            *(value for value in (one.day, one.key_id, one.model) if value),
            *(one.requests, one.failed, one.prompt_tokens, one.completion_tokens, one.cost),
        )
        for one in rows
    ]


async def test_usage_is_added_up_by_what_is_asked_for(database: MigratedDatabase) -> None:
    assert await table(database) == [(5, 1, 40, 8, 0.625)]
    assert await table(database, "model") == [
        ("acme/large", 1, 0, 10, 2, 0.5),
        ("incident", 4, 1, 30, 6, 0.125),
    ]
    assert await table(database, "key") == [("a", 4, 1, 30, 6, 0.5), ("b", 1, 0, 10, 2, 0.125)]
    assert await table(database, "day") == [
        ("2026-11-22", 4, 1, 30, 6, 0.625),
        ("2026-11-23", 1, 0, 10, 2, 0.0),
    ]
    assert await table(database, "day", "key", "model") == [
        ("2026-11-22", "a", "acme/large", 1, 0, 10, 2, 0.5),
        ("2026-11-22", "b", "incident", 1, 0, 10, 2, 0.125),
        ("2026-11-22", "a", "incident", 2, 1, 10, 2, 0.0),
        ("2026-11-23", "a", "incident", 1, 0, 10, 2, 0.0),
    ]


async def test_a_key_sees_nothing_of_another(database: MigratedDatabase) -> None:
    assert await table(database, "key", key_id="b") == [("b", 1, 0, 10, 2, 0.125)]
    assert await table(database, key_id="nobody") == []


async def test_names_of_keys_stand_beside_their_ids(database: MigratedDatabase) -> None:
    store = SqlKeyStore(database)
    made, _ = await store.create("ci", scopes=["inference"], models=[], now=DAY)
    key_id = made.key_id
    sink = SqlUsageSink(database)
    sink.add(replace(row(9), key_id=key_id, started_at=NIGHT, cost=9.0))
    await sink.flush()
    rows = await SqlUsage(database).report(UsageQuery(DAY, ("key",), None))
    assert [(one.key_id, one.key_name) for one in rows] == [(key_id, "ci"), ("a", ""), ("b", "")]


async def test_a_report_of_too_many_rows_is_refused(
    database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_usage, "MAX_ROWS", 1)
    with pytest.raises(BadRequest, match="ask for a later since"):
        await table(database, "key")


def key(*scopes: str) -> ApiKey:
    return ApiKey("k", "", "k", frozenset(scopes), frozenset(), DAY)


def test_scope_admin_is_about_all_keys_and_any_other_about_itself() -> None:
    asked = {"since": "2026-11-20", "by": "model,day"}
    expected = UsageQuery(datetime(2026, 11, 20, tzinfo=UTC), ("day", "model"), None)
    assert read_query(asked, key("admin"), DAY) == expected
    assert read_query(asked, key("inference"), DAY) == replace(expected, key_id="k")
    assert read_query({}, key(), DAY) == UsageQuery(DAY - timedelta(days=7), ("model",), "k")


@pytest.mark.parametrize(
    ("asked", "param"),
    [({"since": "yesterday"}, "since"), ({"by": "tenant"}, "by"), ({"key": "other"}, "key")],
)
def test_what_a_report_has_not_is_refused(asked: dict[str, str], param: str) -> None:
    with pytest.raises(BadRequest) as error:
        read_query(asked, key(), DAY)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("role", "scopes", "sees_all"),
    [
        (Role.ROLE_OPERATOR, {"platform", "inference"}, True),
        (Role.ROLE_OPERATOR, {"inference"}, False),
        (Role.ROLE_USER, {"platform", "inference"}, False),
    ],
)
def test_an_operators_key_of_the_registry_that_is_for_the_platform_sees_all(
    role: Role.ValueType, scopes: set[str], sees_all: bool
) -> None:
    made = issued_key(IssuedKey("ops", "ops", role, frozenset(scopes), DAY))
    assert (ADMIN in made.scopes) is sees_all


async def a_key(gateway: Gateway, *scopes: str) -> tuple[str, str]:
    database = Database(gateway.settings.sql.url_for("model_gateway"))
    try:
        made, secret = await SqlKeyStore(database).create("other", scopes=scopes, models=[], now=DAY)
        return made.key_id, secret
    finally:
        await database.stop()


async def ask(gateway: Gateway, secret: str) -> None:
    messages: Any = [{"role": "user", "content": "why?"}]
    await gateway.client(secret).chat.completions.create(model="incident", messages=messages)


async def report(gateway: Gateway, secret: str, query: str = "") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {secret}"}
    url = f"{gateway.url}/upcycle/v1/usage/report{query}"
    async with aiohttp.ClientSession(headers=headers) as http, http.get(url) as reply:
        return reply.status, await reply.json()


async def upcycle(gateway: Gateway, secret: str, *arguments: str) -> tuple[int, str, str]:
    own = {"UPCYCLE_PEERS_GATEWAY": gateway.url.removeprefix("http://"), "UPCYCLE_API_KEY": secret}
    env = {**without_settings(), **NO_PEERS, **own}
    return await run_upcycle("usage", *arguments, env=env, limit_s=60.0)


async def test_operators_see_all_and_a_key_its_own_over_http_and_by_the_command(
    gateway: Gateway, served: EngineDouble
) -> None:
    mine, secret = await a_key(gateway, "inference")
    for asking in (KEY, KEY, secret):
        await ask(gateway, asking)
    await gateway.usage(3)
    status, all_keys = await report(gateway, KEY, "?by=key")
    assert (status, all_keys["scope"]) == (200, "all")
    assert {one["key_id"]: one["requests"] for one in all_keys["rows"]} == {OWNER: 2, mine: 1}
    _, own = await report(gateway, secret, "?by=key,model")
    assert (own["scope"], [(one["key_id"], one["model"]) for one in own["rows"]]) == (
        "own",
        [(mine, "incident")],
    )
    assert (await report(gateway, "up_unknownkey1_" + "x" * 40))[0] == 401

    status, printed, said = await upcycle(gateway, secret, "--by", "key", "--by", "day", "--json")
    (line,) = [json.loads(one) for one in printed.splitlines()]
    assert (status, line["kind"], line["scope"]) == (0, "usage", "own"), said
    assert (line["key_id"], line["key_name"], line["requests"], line["failed"]) == (mine, "other", 1, 0)
    assert (line["prompt_tokens"], line["completion_tokens"]) == (3, 4)
    status, printed, said = await upcycle(gateway, KEY, "--since", "1h", "--by", "key")
    assert "of all keys, since" in said
    assert printed.split("total")[1].split() == ["3", "0", "9", "12", "0"]
    status, _, said = await upcycle(gateway, KEY, "--since", "soon")
    assert (status, "write 90s, 10m, 2h or 30d" in said) == (2, True)
    status, _, said = await upcycle(gateway, "up_unknownkey1_" + "x" * 40)
    assert (status, "answered 401" in said) == (2, True)
