"""The embedded engine on a GPU: the host's scores and draws, and canaries of a trainer that is on it too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from tests.gpu.sizes import CUDA, VOCAB, groups, policy
from tests.services.grpo_trainer.learners import begun, spec, thread_of
from tests.services.policy_engine.policies import make_policy
from tests.services.policy_engine.reference import reference_logprobs

from blob_store import BlobRef
from embedded_engine.model_runner import ModelRunner, RunnerLimits
from embedded_engine.sampling import SamplingSpec
from embedded_engine.sequences import Sequence
from embedded_engine.weights import load_weights
from engine_client import EngineClient, SamplingParams
from grpo_trainer.learner.packed_model import ModelOptions
from grpo_trainer.learner.torch_learner import LearnerOptions
from policy_engine.adapters.engine_kinds import EmbeddedKind, EngineOptions
from policy_engine.adapters.engine_process import EngineProcess
from policy_engine.domain import CanaryRow, EngineTarget, Policy, judge_canary

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
LIMITS = RunnerLimits(max_running=8, max_len=1024, chunk_tokens=256, num_slots=12)


def runner_on(device: str, directory: Path) -> ModelRunner:
    runner = ModelRunner(load_weights(directory, torch.device(device)), LIMITS, lambda _: "")
    runner.label = "0"
    return runner


def sampled(runner: ModelRunner, specs: list[SamplingSpec]) -> list[Sequence]:
    """One sequence per spec, prompts of unequal length, one of which two share."""
    made = [
        Sequence([(7 * at) % VOCAB for at in range(3, 40 + 90 * (number // 2))], one)
        for number, one in enumerate(specs)
    ]
    for one in made:
        runner.add(one)
    with torch.inference_mode():
        for _ in range(2000):
            if not runner.busy:
                return made
            runner.step()
    raise AssertionError("the sequences did not end")


def specs(**changes: float) -> list[SamplingSpec]:
    plain = {"max_tokens": 40, "temperature": 1.0}
    return [SamplingSpec(**{**plain, **changes, "seed": seed}) for seed in range(8)]  # type: ignore[arg-type]


def test_sequences_report_the_logprobs_of_transformers(tmp_path: Path) -> None:
    base = policy(tmp_path / "base")
    for made in sampled(runner_on(CUDA, base), specs()):
        assert len(made.logprobs) == 40
        expected = reference_logprobs(base, made.tokens)[made.num_prompt - 1 :]
        assert made.logprobs == pytest.approx(expected, abs=1e-4)


DRAWS = [{"temperature": 0.0}, {}, {"top_k": 5}, {"top_p": 0.8, "temperature": 0.7}]


@pytest.mark.parametrize("changes", DRAWS)
def test_equal_seeds_draw_equal_tokens_on_both_devices(changes: dict[str, float], tmp_path: Path) -> None:
    base = policy(tmp_path / "base")
    ours = sampled(runner_on(CUDA, base), specs(**changes))
    theirs = sampled(runner_on("cpu", base), specs(**changes))
    # A draw that falls on the border of two tokens may go either way, and all later ones with it.
    assert sum(one.tokens == other.tokens for one, other in zip(ours, theirs, strict=True)) >= 7
    for one, other in zip(ours, theirs, strict=True):
        if one.tokens == other.tokens:
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)


def test_a_reload_and_broken_weights_do_as_on_the_host(tmp_path: Path) -> None:
    base = policy(tmp_path / "base")
    runner = runner_on(CUDA, base)
    broken = load_weights(base, torch.device(CUDA))
    broken.head.fill_(float("nan"))
    runner.reload(broken)
    assert {one.finish_reason for one in sampled(runner, specs())} == {"error"}
    runner.reload(load_weights(base, torch.device(CUDA)))
    for made in sampled(runner, specs()):
        expected = reference_logprobs(base, made.tokens)[made.num_prompt - 1 :]
        assert made.logprobs == pytest.approx(expected, abs=1e-4)


def test_prompts_are_scored(tmp_path: Path) -> None:
    base = policy(tmp_path / "base")
    scoring = [SamplingSpec(max_tokens=1, num_prompt_logprobs=2, num_top_logprobs=3, seed=1)]
    [made] = sampled(runner_on(CUDA, base), scoring)
    expected = reference_logprobs(base, made.prompt)
    assert [top.logprobs[0] for top in made.prompt_logprobs] == pytest.approx(expected, abs=1e-4)
    assert made.tops[0].rank >= 1


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("engine", [CUDA, "cpu"])
async def test_the_canary_of_a_trainer_on_a_gpu_proves_a_reload(
    engine: str, precision: str, tmp_path: Path
) -> None:
    given = LearnerOptions(device=CUDA, microbatch_tokens=1500, model=ModelOptions(precision=precision))
    with thread_of(given) as thread:
        async with begun(thread, policy(tmp_path / "base"), spec()) as learner:
            await learner.step(groups(0))
            snapshot = await learner.snapshot()
            await snapshot.export(tmp_path / "trained")
    canary = tuple(CanaryRow(tuple(ids), tuple(logprobs)) for ids, logprobs in snapshot.canary)
    target = EngineTarget(1, "d", BlobRef("k", "0" * 64, 1))
    published = Policy(target, tmp_path / "trained", canary, "float32", "w")
    with torch.inference_mode():
        measured = runner_on(engine, tmp_path / "trained").score([list(row.token_ids) for row in canary])
        before = runner_on(engine, tmp_path / "base").score([list(row.token_ids) for row in canary])
    assert judge_canary(published, measured, before) < 1e-4


async def test_the_process_serves_and_reloads_on_the_gpu(tmp_path: Path) -> None:
    first, second = (make_policy(tmp_path / f"p{seed}", seed) for seed in (1, 2))
    kind = EmbeddedKind(EngineOptions("m", device=CUDA))
    host = EngineProcess(kind, "127.0.0.1", 0, start_s=120.0, log_path=tmp_path / "engine.log")
    target = EngineTarget(0, "d", BlobRef("k", "0" * 64, 1))
    engine = await host.start(Policy(target, first, (), "float32", "w"))
    try:
        assert isinstance(engine, EngineClient)
        params = SamplingParams(max_tokens=16, temperature=1.0, ignore_eos=True)
        for directory in (first, second):
            await engine.reload_weights(directory)
            await engine.update_weight_version("1")
            prompts = [list(range(5, 30 + at)) for at in range(6)]
            found = await asyncio.gather(
                *(engine.generate("m", one, params, timeout_s=60) for one in prompts)
            )
            for prompt, one in zip(prompts, found, strict=True):
                tokens = [*prompt, *one.token_ids]
                expected = reference_logprobs(directory, tokens)[len(prompt) - 1 :]
                assert list(one.logprobs) == pytest.approx(expected, abs=1e-4)
    finally:
        await host.stop()
