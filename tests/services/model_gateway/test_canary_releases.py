"""A canary release for real: registry, supervisor, embedded engine, gateway, openai client, command line."""

from collections import defaultdict
from contextlib import suppress
from typing import Any

import openai
import pytest
from tests.services.model_gateway.test_canary_routing import canary_at
from tests.services.model_gateway.test_held_versions import _is_recorded as is_recorded
from tests.services.model_gateway.test_held_versions import documents
from tests.services.model_gateway.test_with_engine import ASK, MODEL, Serving, serving
from tests.support.waiting import until

from identities import objects
from identities.entities import recorded_episode_id, recorded_run_id
from trajectory_body import unpack
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.cli.canary_releases import CanaryOptions, canary
from upcycle.platform import PEERS
from upcycle.rpc import RemoteRefused, remote_errors

__all__ = ["serving"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def ask(client: openai.AsyncOpenAI, text: str, **options: Any) -> tuple[str, str]:
    """The version that answered, by the header and by `model` of the body."""
    named: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    raw: Any = await client.chat.completions.with_raw_response.create(**(named | options))
    if options.get("stream"):
        (said,) = {chunk.model async for chunk in raw.parse()}
    else:
        said = raw.parse().model
    return raw.headers["x-upcycle-version"], said


async def shadow_of(serving: Serving, request_id: str) -> set[int]:
    """Versions of its tokens."""
    key = objects.trajectory_body(
        recorded_run_id("bootstrapkey1"), recorded_episode_id(f"shadow:{request_id}")
    )
    data = await until(lambda: serving.store.read(key), "the shadow to be stored", timeout_s=60)
    body = unpack(data)
    assert [message.content for message in body.prompt] == ["why?"]
    return {span.version for turn in body.turns for span in turn.versions}


async def begun(serving: Serving, monkeypatch: pytest.MonkeyPatch, client: openai.AsyncOpenAI) -> None:
    """Head is v0, v1 is a canary release with half of the conversations, and an engine serves it."""
    manifest = await serving.import_base()
    await serving.save(1, manifest)
    for peer in PEERS:
        monkeypatch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", serving.registry_address)

    async def answers() -> bool:
        with suppress(openai.InternalServerError):  # the engine is still starting
            return (await ask(client, "are you there?"))[0] == "0"
        return False

    await until(answers, "head to be served", timeout_s=180)
    await until(lambda: is_recorded(serving, 1), "v1 to be recorded")
    assert await canary(MODEL, "v1", share=0.5, reason="try it", as_json=True) == 0

    async def is_served() -> bool:
        known = await canary_at(serving.url, MODEL)
        return known is not None and bool(known["engines"])

    await until(is_served, "the gateway to know of an engine with the canary's version", timeout_s=60)


async def assert_sticky(client: openai.AsyncOpenAI) -> None:
    """Both sides answer, each conversation stays with one of them, and a named version is left alone."""
    seen: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for number in range(8):
        session = {"X-Session-ID": f"s-{number % 4}"}
        seen[f"text {number}"].add(await ask(client, f"question {number}"))
        seen[f"text {number}"].add(await ask(client, f"question {number}", stream=True))
        seen[f"session {number % 4}"].add(await ask(client, f"other {number}", extra_headers=session))
    assert all(len(answers) == 1 for answers in seen.values()), seen
    assert {next(iter(one)) for one in seen.values()} == {("0", MODEL), ("1", f"{MODEL}@v1")}
    met = next(name for name, one in seen.items() if one == {("1", f"{MODEL}@v1")} and "text" in name)
    question = met.replace("text", "question")
    assert (await ask(client, question, model=f"{MODEL}@head"))[0] == "0"
    assert (await ask(client, question, extra_headers={"X-Upcycle-Version": "head"}))[0] == "0"


async def assert_shadowed(serving: Serving, client: openai.AsyncOpenAI) -> None:
    """v1 answers every request, too, and none of its answers is served."""

    async def is_known() -> bool:
        return (await canary_at(serving.url, MODEL) or {}).get("shadow_share") == 1.0

    await until(is_known, "the gateway to know of the change")
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=ASK, max_tokens=3, extra_headers={"X-Session-ID": "seen"}
    )
    assert raw.headers["x-upcycle-version"] == "0"
    assert await shadow_of(serving, raw.headers["x-request-id"]) == {1}


@pytest.mark.study
async def test_a_canary_release_from_its_begin_to_the_promotion_that_ends_it(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving.client() as client:
        await begun(serving, monkeypatch, client)
        await assert_sticky(client)
        with pytest.raises(RemoteRefused, match="is head of") as head, remote_errors("canary"):
            await canary(MODEL, "v0", share=0.5)
        assert head.value.reason == "ALREADY_HEAD"
        assert await canary(MODEL, "v1", shadow=1.0) == 0
        await assert_shadowed(serving, client)
        assert await canary(MODEL, end=True, reason="seen enough") == 0
        assert not (await serving.registry.ListHolds(pb.ListHoldsRequest())).holds
        with pytest.raises(RemoteRefused, match="is under way") as none, remote_errors("canary"):
            await canary(MODEL, end=True)
        assert none.value.reason == "NO_CANARY_RELEASE"
        assert await canary(MODEL, "v1", share=0.5) == 0
        await serving.promote(1)

        async def is_head() -> bool:
            return await ask(client, "why?") == ("1", MODEL)

        await until(is_head, "head to be v1", timeout_s=60)
    assert await canary_at(serving.url, MODEL) is None
    assert not (await serving.registry.ListHolds(pb.ListHoldsRequest())).holds
    capsys.readouterr()
    assert await canary(MODEL, as_json=True) == 0
    lines = documents(capsys)
    shares = [(one.get("share", 0.0), one.get("shadow_share", 0.0)) for one in lines]
    assert shares == [(0.5, 0.0), (0.0, 1.0), (0.0, 0.0), (0.5, 0.0), (0.0, 0.0)]
    assert [one["reason"] for one in lines[::2]][:2] == ["try it", "seen enough"]
    assert lines[-1]["actor"].startswith("test (")


async def test_options_that_make_no_sense_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"checkpoint": "v1"}, {"share": 0.5}, {"shadow": 0.5}]
    for options in wrong:
        with pytest.raises(CanaryOptions, match="needs a checkpoint and a share"):
            await canary(MODEL, **options)
    with pytest.raises(CanaryOptions, match="leave the checkpoint out"):
        await canary(MODEL, "v1", share=0.5, end=True)
