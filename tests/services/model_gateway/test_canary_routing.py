"""Which conversations meet a canary release, and what happens while no engine serves its version."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import aiohttp
import openai
import pytest
from tests.services.model_gateway.conftest import ENGINE_WAIT_S, KEY, Gateway
from tests.services.model_gateway.engine_double import engine as running
from tests.services.model_gateway.test_routing import engine
from tests.support.waiting import until

from engine_client import EngineState
from model_gateway import telemetry
from model_gateway.domain.calls import ApiRoute, CallLimits, CompletionCall, ModelTarget, read_call
from model_gateway.domain.canary import Canary, conversation_of, names_a_version
from model_gateway.domain.routing import RoutingView
from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1 import events_pb2, registry_pb2


def turns(*texts: str, system: str = "be brief") -> dict[str, Any]:
    """A conversation that goes on: user and assistant take turns."""
    roles = ("user", "assistant")
    said = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    return {"messages": [{"role": "system", "content": system}, *said]}


def call(model: str, **fields: Any) -> CompletionCall:
    body = {"model": model, "prompt": "why?", **fields}
    return read_call(ApiRoute.COMPLETIONS, b"", body, CallLimits(max_n=1, max_tokens=9))


def test_a_conversation_is_its_session_else_its_key_and_its_beginning() -> None:
    one = conversation_of(None, "k1", turns("why?"))
    assert one == conversation_of(None, "k1", turns("why?", "because", "and?"))
    others = [
        conversation_of(None, "k2", turns("why?")),
        conversation_of(None, "k1", turns("how?")),
        conversation_of(None, "k1", turns("why?", system="be long")),
        conversation_of("s1", "k1", turns("why?")),
    ]
    assert len({one, *others}) == 5
    assert conversation_of("s1", "k1", turns("why?")) == conversation_of("s1", "k2", turns("how?"))
    assert conversation_of(None, "k1", {"prompt": "a"}) != conversation_of(None, "k1", {"prompt": "b"})
    assert conversation_of(None, "k1", {"token_ids": [1]}) != conversation_of(None, "k1", {"token_ids": [2]})


def test_the_share_is_met_and_a_larger_one_only_adds() -> None:
    conversations = [f"session {number}" for number in range(10_000)]
    met = {share: {one for one in conversations if Canary(4, share).meets("m", one)} for share in (0.1, 0.5)}
    # Three standard deviations of a binomial: 90 and 150 of 10,000.
    assert abs(len(met[0.1]) - 1000) < 90
    assert abs(len(met[0.5]) - 5000) < 150
    assert met[0.1] < met[0.5]
    # Another version draws anew: else the same conversations would meet every release.
    again = {one for one in conversations if Canary(5, 0.1).meets("m", one)}
    assert len(again & met[0.1]) < 200


@pytest.mark.parametrize(
    ("model", "fields", "headers", "named"),
    [
        ("incident", {}, {}, False),
        ("incident@head", {}, {}, True),
        ("incident@v3", {}, {}, True),
        ("incident", {"checkpoint": "ckpt-incident-v00000003"}, {}, True),
        ("incident", {}, {"X-Upcycle-Version": "head"}, True),
    ],
)
def test_a_request_that_names_a_version_is_left_alone(
    model: str, fields: dict[str, Any], headers: dict[str, str], named: bool
) -> None:
    assert names_a_version(call(model, **fields), headers) is named


def test_only_an_engine_that_holds_the_version_answers_for_it() -> None:
    """One that has it by its channel would say so under the model's bare name."""
    engines = (
        engine("channel", version=4),
        engine("held", held_versions=frozenset({4})),
        engine("leaving", held_versions=frozenset({4}), state=EngineState.STOPPING),
        engine("other", held_versions=frozenset({5})),
    )
    found = RoutingView({}, engines).holding(ModelTarget("incident", 4))
    assert [one.engine_id for one in found] == ["held"]


async def ask(client: openai.AsyncOpenAI, text: str) -> str:
    raw = await client.chat.completions.with_raw_response.create(
        model="incident", messages=[{"role": "user", "content": text}]
    )
    return raw.headers["x-upcycle-version"]


async def change(gateway: Gateway, revision: int, share: float, shadow: float = 0.0) -> None:
    """As the registry would say it."""
    release = registry_pb2.CanaryRelease(
        model="incident", revision=revision, version=4, share=share, shadow_share=shadow
    )
    release.changed_at.FromDatetime(datetime.now(UTC))
    if share or shadow:
        gateway.registry.models["incident"].canary_release.CopyFrom(release)
    else:
        gateway.registry.models["incident"].ClearField("canary_release")
    event = events_pb2.CanaryReleaseChanged(release=release)
    await gateway.bus.publish(event, model="incident", event_id=f"canary/{gateway.port}/{revision}")


async def canary_at(url: str, model: str) -> dict[str, Any] | None:
    """What a gateway knows of the model's canary release."""
    headers = {"authorization": f"Bearer {KEY}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{url}/upcycle/v1/serving") as response,
    ):
        models = {one["model"]: one["canary"] for one in (await response.json())["models"]}
    found: dict[str, Any] | None = models.get(model)
    return found


async def known(gateway: Gateway, engines: list[str] | None) -> bool:
    """Whether the gateway knows the release with these engines; None: that there is none."""
    found = await canary_at(gateway.url, "incident")
    return (None if found is None else found["engines"]) == engines


async def versions(gateway: Gateway) -> list[str]:
    """Of eight conversations, each begun anew."""
    async with gateway.client() as client:
        return [await ask(client, f"question {number}") for number in range(8)]


@pytest.mark.parametrize("changes", [{"poll_s": 60.0}])
async def test_a_change_counts_at_once_and_head_answers_where_the_canary_cannot(
    gateway: Gateway, changes: dict[str, Any]
) -> None:
    gateway.registry.head("incident", 3)
    async with (
        running(version=3, reports_versions=False) as head,
        running(version=0, held=frozenset({4}), reports_versions=False) as beside,
    ):
        gateway.registry.lease(head, "a-head")
        assert set(await versions(gateway)) == {"3"}
        await change(gateway, 1, 0.5)

        await until(lambda: known(gateway, []), "the release to be known, long before the next poll")
        assert set(await versions(gateway)) == {"3"}
        gateway.registry.lease(beside, "b-beside", channel=common_pb2.CHANNEL_LATEST)
        await change(gateway, 2, 0.5)
        await until(lambda: known(gateway, ["b-beside"]), "an engine that serves the canary to be known")
        first = await versions(gateway)
        assert set(first) == {"3", "4"}
        assert await versions(gateway) == first
        beside.fail_status = 500
        assert set(await versions(gateway)) == {"3"}
        beside.fail_status = 0

        async def as_before() -> bool:
            return await versions(gateway) == first

        await until(as_before, "the engine to be trusted again")
        await change(gateway, 3, 0.0)
        await until(lambda: known(gateway, None), "the end of the release to be known")
        assert set(await versions(gateway)) == {"3"}


def counted() -> dict[str, float]:
    """Requests that met the release, by what answered them."""
    return {by: telemetry.CANARY_REQUESTS.labels("incident", by)._value.get() for by in ("canary", "head")}


async def answers_by_canary(gateway: Gateway) -> bool:
    return "4" in await versions(gateway)


@pytest.mark.parametrize("status", [404, 500, 502, 503])
@pytest.mark.parametrize("is_shared", [False, True])
async def test_head_answers_for_a_version_that_its_engine_cannot(
    gateway: Gateway, status: int, is_shared: bool
) -> None:
    gateway.registry.head("incident", 3)
    async with (
        running(version=3, reports_versions=False) as head,
        running(version=0, reports_versions=False) as beside,
    ):
        holder = head if is_shared else beside
        holder.held, holder.fail_held, holder.is_alive = frozenset({4}), status, True
        gateway.registry.lease(head, "a-head")
        gateway.registry.lease(beside, "b-beside", channel=common_pb2.CHANNEL_LATEST)
        await change(gateway, 1, 1.0)
        await until(lambda: known(gateway, ["a-head" if is_shared else "b-beside"]))
        before = counted()
        for number in range(3):
            began = asyncio.get_running_loop().time()
            async with gateway.client() as client:
                assert await ask(client, f"question {number}") == "3"
            assert asyncio.get_running_loop().time() - began < ENGINE_WAIT_S / 2
        assert counted() == {"canary": before["canary"], "head": before["head"] + 3}
        holder.fail_held = 0
        await until(lambda: answers_by_canary(gateway), "the canary's version to answer")
        assert counted()["canary"] > before["canary"]
