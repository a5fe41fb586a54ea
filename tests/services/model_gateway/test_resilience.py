"""Engines that go away, reload, or come back; registries that fall silent; clients that leave."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import aiohttp
import openai
import pytest
from tests.services.model_gateway.conftest import KEY, Gateway, digest
from tests.services.model_gateway.engine_double import EngineDouble, engine
from tests.support.waiting import until

from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1 import registry_pb2

ASK: Any = [{"role": "user", "content": "why?"}]
ANSWER = "the pool is exhausted"


async def ask(gateway: Gateway, model: str = "incident", **body: Any) -> Any:
    return await gateway.client().chat.completions.with_raw_response.create(model=model, messages=ASK, **body)


async def collect(stream: AsyncIterator[Any], into: list[str]) -> None:
    async for chunk in stream:
        into.append(chunk.choices[0].delta.content)


async def words(stream: AsyncIterator[Any]) -> list[str]:
    got: list[str] = []
    await collect(stream, got)
    return got


@pytest.mark.parametrize("stream", [False, True])
async def test_another_engine_takes_over_before_the_first_byte(gateway: Gateway, stream: bool) -> None:
    async with engine(fail_status=500) as broken, engine() as sound:
        gateway.registry.head("incident", 0)
        gateway.registry.lease(broken, "a-broken")
        gateway.registry.lease(sound, "b-sound")
        for _ in range(3):
            await ask(gateway, stream=stream)
        assert len(sound.requests) == 3
        assert 1 <= len(broken.requests) <= 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_a_living_engine_cannot_answer_takes_it_from_no_one(
    gateway: Gateway, stream: bool
) -> None:
    """It was asked again for as long as a request waits, and each time all others avoided the engine."""
    async with engine(fail_status=500, is_alive=True) as broken:
        gateway.registry.head("incident", 0)
        gateway.registry.lease(broken)
        with pytest.raises(openai.InternalServerError) as failed:
            await ask(gateway, stream=stream)
        assert (failed.value.status_code, failed.value.code) == (502, "engine_failed")
        assert len(broken.requests) == 2
        broken.fail_status = 0
        await ask(gateway, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_died_is_waited_for(gateway: Gateway, stream: bool) -> None:
    gone = EngineDouble()
    await gone.start()
    gateway.registry.head("incident", 0)
    gateway.registry.lease(gone)
    await gone.stop()
    asking = asyncio.create_task(ask(gateway, stream=stream))
    await asked_again(gateway)
    assert not asking.done()
    async with engine() as back:
        gateway.registry.lease(back)
        assert (await asking).headers["x-upcycle-version"] == "0"


async def test_an_engine_that_dies_mid_answer_is_replaced_if_nothing_was_sent(gateway: Gateway) -> None:
    async with engine(token_delay_s=0.2) as dying, engine() as sound:
        gateway.registry.head("incident", 0)
        gateway.registry.lease(dying, "a-dying")
        asking = asyncio.create_task(ask(gateway))
        await until(lambda: bool(dying.requests))
        gateway.registry.lease(sound, "b-sound")
        await dying.stop()
        assert (await asking).parse().choices[0].message.content == ANSWER


async def test_a_stream_that_is_cut_ends_with_a_clean_error(gateway: Gateway) -> None:
    async with engine(cut_after=2, token_delay_s=0.05) as dying:
        gateway.registry.head("incident", 0)
        gateway.registry.lease(dying)
        stream = await gateway.client().chat.completions.create(model="incident", messages=ASK, stream=True)
        got: list[str] = []
        with pytest.raises(openai.APIError, match="was lost"):
            await collect(stream, got)
        assert got == ["the", "pool"]
        assert len(dying.requests) == 1
        (row,) = await gateway.usage(1)
        assert row["error"] == "engine_lost"


@pytest.mark.parametrize("changes", [{"engine_wait_s": 3.0}])
async def test_no_engine_is_said_after_the_wait(gateway: Gateway, changes: dict[str, Any]) -> None:
    gateway.registry.head("incident", 0)
    before = gateway.registry.asked
    with pytest.raises(openai.InternalServerError) as refused:
        await ask(gateway)
    assert refused.value.status_code == 503
    assert refused.value.code == "no_engine"
    assert gateway.registry.asked >= before + 4, "it looked for an engine more than once"


async def test_a_reloading_engine_makes_requests_wait_not_fail(gateway: Gateway) -> None:
    async with engine() as reloading:
        gateway.registry.head("incident", 0)
        gateway.registry.lease(reloading, state=registry_pb2.ENGINE_STATE_RELOADING)
        reloading.paused.clear()
        asking = [asyncio.create_task(ask(gateway)) for _ in range(8)]
        await until(lambda: len(reloading.requests) == 8)
        assert not any(task.done() for task in asking)
        reloading.version = 1
        reloading.paused.set()
        gateway.registry.head("incident", 1)
        gateway.registry.lease(reloading)
        versions = {(await task).headers["x-upcycle-version"] for task in asking}
        assert versions == {"1"}


@pytest.mark.parametrize("reports_versions", [True, False])
async def test_after_a_promotion_no_answer_names_the_old_version(
    gateway: Gateway, reports_versions: bool
) -> None:
    async with engine(version=1, reports_versions=reports_versions) as double:
        gateway.registry.head("incident", 1)
        gateway.registry.lease(double)
        assert (await ask(gateway)).headers["x-upcycle-version"] == "1"
        promoted_at = time.time()
        await gateway.promote("incident", 2)
        # The engine reloads while its lease still says 1: from here on no answer may say 1.
        double.version = 2
        await asked_again(gateway)
        for stream in (False, True):
            reply = await ask(gateway, stream=stream)
            assert reply.headers["x-upcycle-version"] == "2"
            assert reply.headers["x-upcycle-digest"] == digest(2)
        gateway.registry.lease(double)
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:
            said = await (await session.get(f"{gateway.url}/upcycle/v1/serving")).json()
        (promotion,) = said["models"][0]["promotions"]
        assert promotion["version"] == 2
        assert 0 < promotion["first_token_ms"] <= 1000 * (time.time() - promoted_at)


async def test_a_promotion_whose_fact_is_lost_is_timed_from_the_registrys_list(gateway: Gateway) -> None:
    async with engine(version=1) as double:
        gateway.registry.head("incident", 1)
        gateway.registry.lease(double)
        assert (await ask(gateway)).headers["x-upcycle-version"] == "1"
        double.version = 2
        gateway.registry.head("incident", 2)
        gateway.registry.models["incident"].promoted_at.FromDatetime(datetime.now(UTC))
        gateway.registry.lease(double)
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:

            async def served() -> list[int]:
                await ask(gateway)
                said = await (await session.get(f"{gateway.url}/upcycle/v1/serving")).json()
                return [promotion["version"] for promotion in said["models"][0]["promotions"]]

            assert await until(served, "the promotion to be shown") == [2]


async def test_a_request_that_waits_for_an_engine_is_shown(gateway: Gateway) -> None:
    gateway.registry.head("incident", 1)
    gateway.registry.head("other", 1)
    async with (
        engine(version=1) as double,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session,
    ):

        async def shown() -> dict[str, tuple[int, bool]]:
            said = await (await session.get(f"{gateway.url}/upcycle/v1/serving")).json()
            return {row["model"]: (row["waiting"], row["asked_s_ago"] is not None) for row in said["models"]}

        async def waits() -> bool:
            return (await shown()).get("incident") == (1, True)

        asked = asyncio.create_task(ask(gateway))
        await until(waits, "the request to be shown")
        gateway.registry.lease(double)
        assert (await asked).status_code == 200
        assert await shown() == {"incident": (0, True), "other": (0, False)}


async def test_an_answer_across_a_reload_names_both_versions(gateway: Gateway) -> None:
    async with engine(version=1, reload_after=2) as double:
        gateway.registry.head("incident", 1)
        gateway.registry.lease(double)
        headers = (await ask(gateway)).headers
        assert (headers["x-upcycle-version"], headers["x-upcycle-oldest-version"]) == ("2", "1")


async def test_engines_at_head_are_preferred(gateway: Gateway) -> None:
    async with engine(version=1) as old, engine(version=2) as new:
        gateway.registry.head("incident", 2)
        gateway.registry.lease(old, "a-old")
        gateway.registry.lease(new, "b-new")
        for _ in range(4):
            assert (await ask(gateway)).headers["x-upcycle-version"] == "2"
        assert old.requests == []


async def test_rollout_engines_do_not_serve_head(gateway: Gateway) -> None:
    async with engine(version=9) as rollout, engine(version=1) as head:
        gateway.registry.head("incident", 1)
        gateway.registry.lease(rollout, "a-rollout", channel=common_pb2.CHANNEL_LATEST)
        gateway.registry.lease(head, "b-head")
        assert (await ask(gateway)).headers["x-upcycle-version"] == "1"
        assert rollout.requests == []


async def test_load_spreads_over_engines(gateway: Gateway) -> None:
    async with engine() as one, engine() as two:
        gateway.registry.head("incident", 0)
        gateway.registry.lease(one, "one")
        gateway.registry.lease(two, "two")
        for each in (one, two):
            each.paused.clear()  # none is answered before all are asked
        asking = [asyncio.create_task(ask(gateway)) for _ in range(10)]
        await until(lambda: len(one.requests) + len(two.requests) == 10)
        for each in (one, two):
            each.paused.set()
        await asyncio.gather(*asking)
        assert {len(one.requests), len(two.requests)} == {5}


async def test_a_silent_registry_does_not_stop_serving(gateway: Gateway) -> None:
    async with engine() as double:
        gateway.registry.head("incident", 0)
        gateway.registry.lease(double)
        await ask(gateway)
        gateway.registry.is_away = True
        await asked_again(gateway)
        assert (await ask(gateway)).headers["x-upcycle-version"] == "0"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_the_engine(gateway: Gateway, stream: bool) -> None:
    async with engine(token_delay_s=30) as slow:
        gateway.registry.head("incident", 0)
        gateway.registry.lease(slow)
        asking = asyncio.create_task(ask(gateway, stream=stream))
        await until(lambda: bool(slow.requests))
        asking.cancel()
        await until(lambda: slow.aborted == 1)
        (row,) = await gateway.usage(1)
        assert row["status"] == 499


async def test_a_drain_finishes_what_is_in_flight(gateway: Gateway) -> None:
    async with engine(token_delay_s=0.1) as double:
        gateway.registry.head("incident", 0)
        gateway.registry.lease(double)
        stream = await gateway.client().chat.completions.create(model="incident", messages=ASK, stream=True)
        stopping = asyncio.create_task(gateway.service.stop())
        assert await words(stream) == ANSWER.split()
        assert await stopping


async def asked_again(gateway: Gateway) -> None:
    """The gateway has asked the registry for models and engines at least once more, from beginning to end."""
    before = gateway.registry.asked
    await until(lambda: gateway.registry.asked >= before + 4)
