"""Weights that wait beside those that serve, and take their place between two tokens."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.services.embedded_engine.conftest import MODEL, running_engine
from tests.services.policy_engine.policies import Shape, make_policy
from tests.services.policy_engine.reference import reference_logprobs

from engine_client import EngineClient, EngineRejected, SamplingParams

ROWS = [[1, 40, 41, 42, 43], [1, 50, 51]]
SHORT = SamplingParams(max_tokens=4)


@pytest_asyncio.fixture
async def engine(tmp_path: Path) -> AsyncIterator[EngineClient]:
    """Serves weights of seed 1 under the label 1."""
    with running_engine(make_policy(tmp_path / "v1", 1), tmp_path / "log") as process:
        async with EngineClient(process.url) as client:
            await client.update_weight_version("1")
            yield client


async def versions(engine: EngineClient) -> list[int]:
    made = await engine.generate(MODEL, ROWS[0], SHORT)
    return [span.version for span in made.version_spans]


async def test_both_are_scored_and_the_old_ones_serve_until_the_swap(
    engine: EngineClient, tmp_path: Path
) -> None:
    other = make_policy(tmp_path / "v2", 2)
    scores = await engine.stage_weights(other, ROWS)
    assert scores is not None
    for row, staged, serving in zip(ROWS, scores.staged, scores.serving, strict=True):
        assert staged == pytest.approx(reference_logprobs(other, row), abs=1e-3)
        assert serving == pytest.approx(reference_logprobs(tmp_path / "v1", row), abs=1e-3)
    assert await versions(engine) == [1]
    assert await engine.swap_weights(other, "2", recompute_running=False) >= 0.0
    assert await versions(engine) == [2]
    assert await engine.prompt_logprobs(MODEL, ROWS[0]) == pytest.approx(scores.staged[0], abs=1e-3)


async def test_a_request_goes_on_across_the_swap(engine: EngineClient, tmp_path: Path) -> None:
    other = make_policy(tmp_path / "v2", 2)
    await engine.stage_weights(other, ROWS)
    long = SamplingParams(max_tokens=200, ignore_eos=True)
    running = asyncio.create_task(engine.generate(MODEL, ROWS[0], long))
    while (await engine.load()).num_running == 0 and not running.done():
        await asyncio.sleep(0.001)
    await engine.swap_weights(other, "2", recompute_running=True)
    made = await running
    assert len(made.token_ids) == 200
    assert [span.version for span in made.version_spans] in ([1, 2], [1])  # it may have ended before the swap


async def test_only_what_was_staged_last_can_be_swapped_in(engine: EngineClient, tmp_path: Path) -> None:
    first, second = make_policy(tmp_path / "v2", 2), make_policy(tmp_path / "v3", 3)
    with pytest.raises(EngineRejected, match="stage it first"):
        await engine.swap_weights(first, "2", recompute_running=False)
    await engine.stage_weights(first, ROWS)
    await engine.stage_weights(second, ROWS)
    with pytest.raises(EngineRejected, match="is not what was staged"):
        await engine.swap_weights(first, "2", recompute_running=False)
    await engine.forget_staged_weights()
    with pytest.raises(EngineRejected, match="no weights"):
        await engine.swap_weights(second, "3", recompute_running=False)
    assert await versions(engine) == [1]


async def test_weights_of_another_shape_are_not_staged(engine: EngineClient, tmp_path: Path) -> None:
    with pytest.raises(EngineRejected, match="another shape"):
        await engine.stage_weights(make_policy(tmp_path / "wide", 2, Shape(inner=128)), ROWS)
    assert await versions(engine) == [1]
