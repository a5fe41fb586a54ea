"""Versions held beside the main one: whole weights in the embedded engine, adapters in vLLM."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.contract.engines.conftest import ENGINES, MODEL, EngineUnderTest, engine_on, policy_of
from tests.services.policy_engine.policies import make_adapted
from tests.services.policy_engine.reference import reference_logprobs

from engine_client import Completion, EngineRejected, SamplingParams, pinned_name
from policy_engine.domain import Policy, VersionRefused

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = [1, *range(30, 60)]
RANK = 4
TWIN = "twin"
"""A fork of the suite's model, trained with adapters."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES)
async def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EngineUnderTest]:
    """One that holds adapters: a vLLM that does cannot change its weights."""
    folder = tmp_path_factory.mktemp(f"holding-{request.param}")
    under_test = await engine_on(request.param, folder, vllm_lora_rank=RANK)
    yield under_test
    await under_test.host.stop()


def adapted(engine: EngineUnderTest, version: int, *, base: int = 0, rank: int = RANK) -> Policy:
    """A version that was trained with an adapter over a version of the suite."""
    directory = engine.folder / "policies" / f"adapted-{version}-{base}-{rank}"
    if not directory.is_dir():
        digest = engine.policy(base).target.digest
        make_adapted(engine.directory(base), directory, 900 + version, base_digest=digest, rank=rank)
    return policy_of(directory, version)


def check(policy: Policy, made: Completion) -> None:
    """Each token is of that version, by the whole weights that the trainer published."""
    assert {span.version for span in made.version_spans} == {policy.target.version}
    expected = reference_logprobs(policy.directory, [*PROMPT, *made.token_ids])[len(PROMPT) - 1 :]
    assert made.logprobs == pytest.approx(expected, abs=1e-3)


async def test_versions_are_held_side_by_side_and_each_samples_its_own_weights(
    engine: EngineUnderTest,
) -> None:
    held = [adapted(engine, version) for version in (11, 12, 13)]
    protocol, serving, sampling = engine.protocol(), engine.serving(0), SamplingParams(max_tokens=24)
    for policy in held:
        await protocol.hold(engine.client, policy, TWIN, serving)
    names = [pinned_name(TWIN, policy.target.version) for policy in held]
    try:
        asked = [engine.client.generate(name, PROMPT, sampling) for name in (*names, MODEL)]
        *made, main = await asyncio.gather(*asked)
        for policy, one in zip(held, made, strict=True):
            check(policy, one)
        check(engine.policy(0), main)
        assert len({one.logprobs for one in (*made, main)}) == 4, "four policies"
    finally:
        for name in names:
            await engine.client.unload_adapter(name)
    with pytest.raises(EngineRejected) as refused:
        await engine.client.generate(names[0], PROMPT, sampling)
    assert refused.value.status == 404


async def test_a_held_version_whose_canary_disagrees_is_not_served(engine: EngineUnderTest) -> None:
    lying = adapted(engine, 14)
    lying = policy_of(lying.directory, 14, canary_of=engine.directory(5))
    with pytest.raises(VersionRefused, match="canary_mismatch"):
        await engine.protocol().hold(engine.client, lying, TWIN, engine.serving(0))
    with pytest.raises(EngineRejected):
        await engine.client.generate(pinned_name(TWIN, 14), PROMPT, SamplingParams(max_tokens=2))


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ((1, None), "it has no adapter"),
        ((15, 1), "added to the weights digest-1, and this vLLM serves v0"),
        ((16, 0), "rank 5; raise POLICY_ENGINE_VLLM_LORA_RANK=4"),
    ],
)
async def test_what_vllm_cannot_hold_is_refused_by_name(
    engine: EngineUnderTest, wanted: tuple[int, int | None], why: str
) -> None:
    version, base = wanted
    policy = (
        engine.policy(version)
        if base is None
        else adapted(engine, version, base=base, rank=5 if version == 16 else RANK)
    )
    if engine.kind == "embedded":  # holds whole weights, whatever they were trained from
        await engine.protocol().hold(engine.client, policy, TWIN, engine.serving(0))
        await engine.client.unload_adapter(pinned_name(TWIN, version))
        return
    with pytest.raises(VersionRefused, match=why):
        await engine.protocol().hold(engine.client, policy, TWIN, engine.serving(0))
