"""Limits and budgets of a key: 429 with Retry-After, and the money of a day across restarts."""

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.services.model_gateway.conftest import KEY, Gateway
from tests.services.model_gateway.engine_double import engine
from tests.services.model_gateway.upstream.provider_double import COST, ProviderDouble
from tests.support.waiting import until

from model_gateway.adapters.database import GatewayDatabase
from model_gateway.adapters.sql_keys import SqlKeyStore
from model_gateway.adapters.sql_usage import SqlUsage
from model_gateway.cli import run_command
from model_gateway.domain.keys import ApiKey
from model_gateway.domain.limits import BudgetSpent, KeyLimits
from model_gateway.usecases.limiting import BudgetUnknown, LimitKeys
from service_kit.clock import utc_now
from sql_store import Database
from upcycle.errors import Unavailable

ASK: Any = [{"role": "user", "content": "why?"}]


async def ask(gateway: Gateway, key: str = KEY, model: str = "acme/large", **body: Any) -> Any:
    return await gateway.client(key).chat.completions.create(model=model, messages=ASK, **body)


async def limited(gateway: Gateway, **asked: Any) -> openai.RateLimitError:
    with pytest.raises(openai.RateLimitError) as refused:
        await ask(gateway, **asked)
    assert int(refused.value.response.headers["retry-after"]) >= 1
    return refused.value


@pytest.mark.parametrize("more", [{"key_requests_per_minute": 2}])
async def test_requests_a_minute_hold_for_every_model(
    gateway: Gateway, acme: ProviderDouble, more: dict[str, Any]
) -> None:
    async with engine() as double:
        gateway.registry.head("incident", 0)
        gateway.registry.lease(double)
        await ask(gateway, model="incident")
        await ask(gateway)
        error = await limited(gateway, model="incident")
        assert error.code == "rate_limit_exceeded"
        assert "2 requests a minute" in error.message
        assert (len(double.requests), len(acme.requests)) == (1, 1)
    await gateway.client().models.list()  # reading is not limited


@pytest.mark.parametrize("more", [{"key_tokens_per_minute": 1000}])
async def test_tokens_a_minute(gateway: Gateway, acme: ProviderDouble, more: dict[str, Any]) -> None:
    await ask(gateway)
    assert "1000 tokens a minute" in (await limited(gateway)).message


async def test_requests_at_once_are_those_of_one_key(gateway: Gateway, acme: ProviderDouble) -> None:
    database = Database(gateway.settings.sql.url_for("model_gateway"))
    _, narrow = await SqlKeyStore(database).create(
        "narrow", scopes=["inference"], models=[], now=utc_now(), limits=KeyLimits(concurrency=1)
    )
    await database.stop()
    acme.stall_head = True
    first = asyncio.create_task(ask(gateway, key=narrow))
    await until(lambda: len(acme.requests) == 1)
    assert "1 requests in flight" in (await limited(gateway, key=narrow)).message
    other = asyncio.create_task(ask(gateway))
    await until(lambda: len(acme.requests) == 2)
    acme.released.set()
    await asyncio.gather(first, other)
    await ask(gateway, key=narrow)


@pytest.mark.parametrize("more", [{"key_cost_per_day": 1.5 * COST, "engine_wait_s": 2.0}])
async def test_a_spent_budget_stops_what_costs_and_nothing_else(
    gateway: Gateway, acme: ProviderDouble, more: dict[str, Any]
) -> None:
    await ask(gateway)
    async for _ in await ask(gateway, stream=True):
        pass
    error = await limited(gateway)
    assert error.code == "insufficient_quota"
    assert "has spent 0.012 of 0.009 today" in error.message
    async with engine() as double:
        gateway.registry.head("incident", 0)
        gateway.registry.lease(double)
        await ask(gateway, model="incident")
        double.fail_status = 500
        error = await limited(gateway, model="incident")
        assert error.code == "insufficient_quota", "a fallback costs, too"
    assert len(acme.requests) == 2


@pytest.mark.parametrize("more", [{"key_cost_per_day": 1.0}])
async def test_one_request_that_may_cost_more_than_is_left_is_not_asked(
    gateway: Gateway, acme: ProviderDouble, more: dict[str, Any]
) -> None:
    error = await limited(gateway, max_tokens=100_000, n=2)  # 200,000 tokens at 8 a million
    assert error.code == "insufficient_quota"
    assert "may cost 1.6" in error.message
    assert "has spent 0 of 1 today" in error.message
    assert "name a smaller max_tokens" in error.message
    assert acme.requests == []
    await ask(gateway, max_tokens=100_000)


async def test_what_was_spent_today_is_known_after_a_restart(gateway: Gateway, acme: ProviderDouble) -> None:
    await ask(gateway)
    (row,) = await gateway.usage(1)
    database = Database(gateway.settings.sql.url_for("model_gateway"))
    try:
        keys = SqlKeyStore(database)
        key = await keys.find(row["key_id"])
        assert key is not None
        fresh = LimitKeys(SqlUsage(database), KeyLimits(cost_per_day=COST), now=utc_now)
        admission = await fresh.admit(key)
        with pytest.raises(BudgetSpent):
            admission.reserve(0.0)
    finally:
        await database.stop()


class _Away(SqlUsage):
    async def spent_today(self, key_id: str, now: datetime) -> float:
        raise Unavailable("the database")


async def test_while_spending_is_unknown_only_what_costs_is_refused() -> None:
    key = ApiKey("k", "", "n", frozenset(), frozenset(), utc_now(), limits=KeyLimits(cost_per_day=1))
    keys = LimitKeys(_Away(Database("sqlite://")), KeyLimits(), now=utc_now)
    admission = await keys.admit(key)
    with pytest.raises(BudgetUnknown, match="key 'k' has spent cannot be read now"):
        admission.reserve(0.0)


def test_the_command_sets_limits_and_a_restart_keeps_those_of_the_bootstrap_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UPCYCLE_SQL_DATA_DIR", str(tmp_path))

    async def restart() -> None:
        database = GatewayDatabase(
            f"sqlite:///{tmp_path / 'model_gateway.sqlite'}", bootstrap_key=KEY, now=utc_now
        )
        await database.start()
        await database.stop()

    asyncio.run(restart())
    key_id = KEY.split("_")[1]
    assert run_command(["set-limits", key_id, "--cost-per-day", "5", "--concurrency", "4"]) == 0
    asyncio.run(restart())
    capsys.readouterr()
    assert run_command(["list-keys"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["limits"] == {"concurrency": 4, "cost_per_day": 5.0}
    assert run_command(["set-limits", "nobody", "--concurrency", "4"]) == 1
    assert run_command(["set-limits", key_id, "--concurrency", "0"]) == 2
    assert run_command(["create-key", "--name", "x", "--cost-per-day", "nan"]) == 2
    assert "--cost-per-day is nan; give a number above 0" in capsys.readouterr().err
