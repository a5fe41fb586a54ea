"""Versions beside head for real: registry, supervisor, embedded engine, gateway, openai client."""

import json
import time
from typing import Any

import openai
import pytest
from tests.services.model_gateway.conftest import KEY
from tests.services.model_gateway.test_with_engine import ASK, MODEL, Serving, serving
from tests.services.policy_engine.policies import make_policy
from tests.services.policy_engine.reference import reference_logprobs
from tests.support.waiting import until

from identities.entities import checkpoint_id
from upcycle import TrainingClient
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.cli.holds import DurationInvalid, hold, holds, release
from upcycle.cli.rehearsal import NothingToRollBackTo, rehearse_rollback
from upcycle.platform import PEERS, Addresses
from upcycle.rpc import RemoteNotFound, remote_errors
from upcycle.train import SamplingRefused

__all__ = ["serving"]
pytestmark = pytest.mark.slow


async def answer(
    client: openai.AsyncOpenAI, model: str, **options: Any
) -> tuple[str, list[int], list[float]]:
    """Version, token ids and log-probabilities of a greedy answer."""
    extra = {"return_token_ids": True, **options.pop("extra_body", {})}
    raw = await client.completions.with_raw_response.create(
        model=model, prompt=[1, 2, 3], max_tokens=4, temperature=0.0, logprobs=0, extra_body=extra, **options
    )
    (choice,) = raw.parse().model_dump()["choices"]
    return raw.headers["x-upcycle-version"], choice["token_ids"], choice["logprobs"]["token_logprobs"]


def assert_of(serving: Serving, version: int, said: tuple[str, list[int], list[float]]) -> None:
    """The tokens are likely as those weights say, and no others."""
    served, ids, logprobs = said
    assert served == str(version)
    directory = make_policy(serving.folder / f"check-{version}", seed=version)
    expected = reference_logprobs(directory, [1, 2, 3, *ids])[-len(ids) :]
    assert logprobs == pytest.approx(expected, abs=1e-3)


async def test_any_version_and_a_new_fork_are_sampled_beside_head(serving: Serving) -> None:
    manifest = await serving.import_base()
    for version in (1, 2):
        manifest = await serving.save(version, manifest)
    await serving.promote(2)
    async with serving.client() as client:

        async def at_head() -> bool:
            return (await answer(client, MODEL))[0] == "2"

        await until(at_head, "head to be served", timeout_s=60)
        assert_of(serving, 1, await answer(client, f"{MODEL}@v1"))
        assert_of(serving, 0, await answer(client, f"{MODEL}@{checkpoint_id(MODEL, 0)}"))
        assert_of(serving, 1, await answer(client, MODEL, extra_headers={"X-Upcycle-Version": "1"}))
        assert_of(serving, 1, await answer(client, MODEL, extra_body={"checkpoint": checkpoint_id(MODEL, 1)}))
        await serving.registry.ForkModel(
            pb.ForkModelRequest(
                source_model=MODEL, source_checkpoint_id=checkpoint_id(MODEL, 1), model="twin"
            )
        )
        served, ids, logprobs = await answer(client, "twin")
        assert served == "0"
        assert_of(serving, 1, ("1", ids, logprobs))
        assert_of(serving, 2, await answer(client, MODEL))
    holds = (await serving.registry.ListHolds(pb.ListHoldsRequest())).holds
    assert [(one.model, one.version, one.holder) for one in holds] == [
        (MODEL, 0, "model_gateway"),
        (MODEL, 1, "model_gateway"),
        ("twin", 0, "model_gateway"),
    ]


async def test_what_cannot_be_held_is_refused_by_name(serving: Serving) -> None:
    manifest = await serving.import_base()
    for version in (1, 2, 3):
        manifest = await serving.save(version, manifest)
    async with serving.client() as client:
        await answer(client, MODEL)
        with pytest.raises(openai.NotFoundError, match=f"{MODEL}@v9 does not exist") as unknown:
            await answer(client, f"{MODEL}@v9")
        assert unknown.value.code == "version_not_found"
        for version in (1, 2, 3):
            await until(lambda: _is_recorded(serving, version), f"v{version} to be recorded")  # noqa: B023
            await serving.registry.HoldPolicy(
                pb.HoldPolicyRequest(model=MODEL, version=version, ttl_s=600, holder="ann")
            )
        await serving.registry.ForkModel(pb.ForkModelRequest(source_model=MODEL, model="crowded"))
        with pytest.raises(openai.InternalServerError, match=rf"{MODEL}@v1 for 'ann' until") as full:
            await answer(client, "crowded@v0")
        assert full.value.code == "no_room"
        for headers, says in (
            ({"X-Upcycle-Version": "soon"}, "'soon' names no version"),
            ({"X-Upcycle-Version": "2"}, f"X-Upcycle-Version says v2, and the model is {MODEL}@v1"),
        ):
            with pytest.raises(openai.BadRequestError, match=says) as wrong:
                await answer(client, f"{MODEL}@v1", extra_headers=headers)
            assert wrong.value.param == "X-Upcycle-Version"
        with pytest.raises(openai.BadRequestError, match="names no version of"):
            await answer(client, f"{MODEL}@{checkpoint_id('other', 1)}")


async def _is_recorded(serving: Serving, version: int) -> bool:
    listed = await serving.registry.ListCheckpoints(pb.ListCheckpointsRequest(model=MODEL))
    return any(one.version == version for one in listed.checkpoints)


def documents(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What commands printed, without lines of the services that run in this process."""
    printed = capsys.readouterr().out.splitlines()
    return [json.loads(line) for line in printed if line.startswith('{"schema_version"')]


async def test_the_command_line_holds_lists_and_releases(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await serving.import_base()
    for peer in PEERS:
        monkeypatch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", serving.registry_address)
    async with serving.client() as client:
        await answer(client, MODEL)
    assert await hold(f"{MODEL}@v0", for_="10m", holder="ann", as_json=True) == 0
    assert await holds(as_json=True) == 0
    # The gateway may have one of its own: of head, for a request that came before an engine followed it.
    first, second = (said for said in documents(capsys) if said["holder"] == "ann")
    assert first == second
    (lease,) = (await serving.registry.ListEngines(pb.ListEnginesRequest())).engines
    assert list(lease.held_versions) == [0]
    listed = (await serving.registry.ListHolds(pb.ListHoldsRequest())).holds
    (held,) = (one for one in listed if one.holder == "ann")
    assert 590 < held.expires_at.seconds - time.time() <= 600
    assert await release(f"{MODEL}@v0", holder="bob", as_json=True) == 0
    assert await release(f"{MODEL}@v0", holder="ann", as_json=True) == 0
    assert [said.get("released") for said in documents(capsys)] == [False, True]
    with pytest.raises(RemoteNotFound, match="no version 9"), remote_errors("hold"):
        await hold(f"{MODEL}@v9")
    for length in ("10", "1w", "-5m", ""):
        with pytest.raises(DurationInvalid, match="is no length of time; write 90s, 10m, 2h or 30d"):
            await hold(f"{MODEL}@v0", for_=length)


async def test_a_training_client_samples_what_it_can_train(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = await serving.import_base()
    await serving.save(1, manifest)
    monkeypatch.setenv("UPCYCLE_API_KEY", KEY)
    where = serving.url.removeprefix("http://")
    client = TrainingClient(MODEL, runtime=Addresses(dict.fromkeys(PEERS, where), "the test"), timeout_s=60)
    await until(lambda: _is_recorded(serving, 1), "v1 to be recorded")
    one, two = await client.sample([1, 2, 3], num_samples=2, max_tokens=4, seed=7, version=1)
    assert list(one.prompt_token_ids) == [1, 2, 3] == list(two.prompt_token_ids)
    assert one.version == 1
    assert 1 <= len(one.output_token_ids) == len(one.output_logprobs) <= 4
    directory = make_policy(serving.folder / "check", seed=1)
    expected = reference_logprobs(directory, [1, 2, 3, *one.output_token_ids])[-len(one.output_token_ids) :]
    assert list(one.output_logprobs) == pytest.approx(expected, abs=1e-3)
    (said,) = await client.sample(ASK, max_tokens=3)
    assert said.version == 0
    assert len(said.output_token_ids) == len(said.output_logprobs)
    with pytest.raises(SamplingRefused, match="version_not_found"):
        await client.sample("why?", version=9)
    with pytest.raises(SamplingRefused, match="the prompt is empty"):
        await client.sample([])


async def test_a_rollback_is_rehearsed_beside_head_which_stays(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = await serving.import_base()
    for peer in PEERS:
        monkeypatch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", serving.registry_address)
    monkeypatch.setenv("UPCYCLE_PEERS_GATEWAY", serving.url.removeprefix("http://"))
    monkeypatch.setenv("UPCYCLE_API_KEY", KEY)
    with pytest.raises(NothingToRollBackTo, match=f"head of '{MODEL}', v0, has no older version before it"):
        await rehearse_rollback(MODEL)
    for version in (1, 2):
        manifest = await serving.save(version, manifest)
        await serving.promote(version)
    async with serving.client() as client:
        await answer(client, MODEL)  # an engine is there
    before = await serving.registry.GetModel(pb.GetModelRequest(model=MODEL))
    assert await rehearse_rollback(MODEL, requests=3, as_json=True) == 0
    (seen,) = documents(capsys)
    assert (seen["head_version"], seen["version"], seen["answered"], seen["failures"]) == (2, 1, 3, [])
    assert not seen["head_moved"]
    assert await rehearse_rollback(MODEL, to="v0", requests=1, as_json=True) == 0
    (seen,) = documents(capsys)
    assert seen["version"] == 0
    assert before == await serving.registry.GetModel(pb.GetModelRequest(model=MODEL))
    holders = {one.holder for one in (await serving.registry.ListHolds(pb.ListHoldsRequest())).holds}
    assert holders <= {"model_gateway"}, "its own hold is released"
    monkeypatch.setenv("UPCYCLE_API_KEY", "up_of_nobody_00000000000000000000")
    assert await rehearse_rollback(MODEL, requests=2) == 1
    assert "answered 0 of 2 requests" in capsys.readouterr().err.replace("\n", " ")
