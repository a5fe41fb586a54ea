"""A trainer's step and the embedded engine's decoding on one GPU, with a policy of 0.6 billion parameters.

Steps go through the trainer's learner, tokens through the engine's continuous batch; neither platform nor
HTTP take part. What the engine sampled is scored by the trainer: the difference is what off-policy
corrections see even where no version is stale.
"""

import asyncio
import gc
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch

from benchmarks.figures import Figure
from benchmarks.gpu_workload import batch, config, row_tokens, write_policy
from benchmarks.options import Options
from benchmarks.stacks import BenchmarkFailed
from embedded_engine.model_runner import ModelRunner, RunnerLimits
from embedded_engine.sampling import SamplingSpec
from embedded_engine.sequences import Sequence as Sampled
from embedded_engine.weights import load_weights
from grpo_math.packing import TrainingRow, pack
from grpo_trainer.domain.spec import TrainingSpec, training_spec
from grpo_trainer.learner.packed_model import ModelOptions, PackedModel, load_model
from grpo_trainer.learner.protocol import BatchGroup
from grpo_trainer.learner.torch_learner import LearnerOptions, LearnerThread, TorchLearner

GIB: Final = 1 << 30
CONCURRENCIES: Final = (1, 16, 64)
PROMPT_TOKENS, NEW_TOKENS = 512, 128
MICROBATCH_TOKENS: Final = 16_384


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute the step. lora_rank: 0 trains all weights."""

    name: str
    model: ModelOptions = field(default_factory=ModelOptions)
    lora_rank: int = 0


WAYS: Final = (
    Way("fp32", ModelOptions()),
    Way("bf16", ModelOptions(precision="bf16")),
    Way("bf16, attention in buckets", ModelOptions(precision="bf16", attention="buckets")),
    Way("bf16, gradient checkpointing", ModelOptions(precision="bf16", gradient_checkpointing=True)),
    Way("bf16, compiled layers", ModelOptions(precision="bf16", compiled=True)),
    Way("fp32, LoRA of rank 16", ModelOptions(), 16),
    Way("bf16, LoRA of rank 16", ModelOptions(precision="bf16"), 16),
)


async def measure(options: Options) -> list[Figure]:
    """The engine first, so that its rows can be scored; then a step in each way."""
    if not torch.cuda.is_available():
        raise BenchmarkFailed(f"torch {torch.__version__} sees no CUDA device on this machine")
    base = options.scratch / "policy"
    parameters = write_policy(base, "cuda", quick=options.quick)
    sampled, figures = await asyncio.to_thread(decoding, base, "cuda", options)
    figures += [_mismatch(base, "cuda", sampled, precision) for precision in ("fp32", "bf16")]
    groups = batch(config(quick=options.quick).vocab_size, groups=options.sized(6, 1))
    for way in WAYS:
        figures.append(await step(base, "cuda", way, groups, parameters, options))
    return figures


def on(device: str) -> str:
    """The device and what drives it, for a figure's name."""
    name = torch.cuda.get_device_name(0) if device == "cuda" else device
    return f"{name}, torch {torch.__version__}"


async def step(
    base: Path, device: str, way: Way, groups: Sequence[BatchGroup], parameters: int, options: Options
) -> Figure:
    """Seconds of an optimizer step; tokens per second and memory in the note."""
    spec: TrainingSpec = training_spec(
        run_id="run-0000000000ab", model="gpu", group_size=8, lora_rank=way.lora_rank, drift_groups=0
    )
    given = LearnerOptions(device=device, microbatch_tokens=MICROBATCH_TOKENS, model=way.model)
    thread = LearnerThread(given)
    learner = TorchLearner(thread)
    seconds: list[float] = []
    try:
        await learner.begin(spec, base)
        for _ in range(options.repeats(3) + 1):
            _reset_peak(device)
            began = time.perf_counter()
            numbers = await learner.step(groups)
            seconds.append(time.perf_counter() - began)
        peak = _peak(device)
    finally:
        await learner.close()
        thread.close()
    middle = sorted(seconds[1:])[(len(seconds) - 1) // 2]
    unique = numbers.values["unique_tokens"]
    note = (
        f"{row_tokens(groups):,} tokens, {unique:,.0f} of them different: {unique / middle:,.0f} tokens/s, "
        f"{6 * parameters * unique / middle / 1e9:,.0f} GFLOP/s as `upcycle size` counts; "
        f"peak {peak / GIB:.1f} GiB; "
        f"the first step took {seconds[0]:.1f} s; {on(device)}"
    )
    return Figure(f"trainer step, {way.name}", "s", tuple(seconds[1:]), note=note)


def decoding(base: Path, device: str, options: Options) -> tuple[list[Sampled], list[Figure]]:
    """What the engine sampled at its largest batch, and its speed at each."""
    weights = load_weights(base, torch.device(device))
    figures, sampled = [], list[Sampled]()
    for count in CONCURRENCIES:
        limits = RunnerLimits(count, PROMPT_TOKENS + NEW_TOKENS + 1, num_slots=count)
        runner = ModelRunner(weights, limits, lambda _: "")
        _burst(runner, count, NEW_TOKENS // 8, seed=1)
        bursts = [_burst(runner, count, NEW_TOKENS, seed=2 + n) for n in range(options.repeats(3))]
        sampled = bursts[-1].sequences
        prompts = [count * PROMPT_TOKENS / burst.prompt_s for burst in bursts]
        figures.append(
            Figure(
                f"embedded engine on a GPU, {count} at once",
                "tokens/s",
                tuple(burst.rate for burst in bursts),
                note=f"prompts of {PROMPT_TOKENS}: {sorted(prompts)[len(prompts) // 2]:,.0f} tokens/s; "
                f"{NEW_TOKENS} new tokens each, float32; {on(device)}",
            )
        )
        del runner
        gc.collect()
    return sampled, figures


@dataclass(frozen=True, slots=True)
class _Burst:
    sequences: list[Sampled]
    prompt_s: float
    rate: float


def _burst(runner: ModelRunner, count: int, new_tokens: int, *, seed: int) -> _Burst:
    """Sequences at once. rate: of tokens after the first of each."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = runner.model.config.vocab_size
    made = [
        Sampled(
            torch.randint(vocabulary, (PROMPT_TOKENS,), generator=generator).tolist(),
            SamplingSpec(max_tokens=new_tokens, seed=1000 * seed + number),
        )
        for number in range(count)
    ]
    with torch.inference_mode():
        for one in made:
            runner.add(one)
        began = time.perf_counter()
        while any(not one.logprobs for one in made):
            runner.step()
        prompted = time.perf_counter()
        before = sum(one.num_sampled for one in made)
        while runner.busy:
            runner.step()
    ended = time.perf_counter()
    return _Burst(made, prompted - began, (count * new_tokens - before) / (ended - prompted))


def _mismatch(base: Path, device: str, sampled: Sequence[Sampled], precision: str) -> Figure:
    """How far the trainer is from the engine, on what the engine sampled under the same weights."""
    model = load_model(base, device=device, options=ModelOptions(precision=precision))
    ratios = log_ratios(model, sampled)
    differences = [abs(value) for value in ratios]
    kl = sum(math.exp(value) - 1 - value for value in ratios) / len(ratios)
    return Figure(
        f"trainer in {precision} against the embedded engine in float32, mean difference",
        "nats per token",
        (sum(differences) / len(differences),),
        note=f"largest {max(differences):.2g}; mismatch KL {kl:.2g}; {len(ratios):,} tokens, mean "
        f"log-probability {_mean_logprob(sampled):.2f}; {on(device)}",
    )


@torch.no_grad()
def log_ratios(model: PackedModel, sampled: Sequence[Sampled]) -> list[float]:
    """Trainer's minus engine's log-probability of each sampled token."""
    found: list[float] = []
    for one in sampled:
        trained = torch.zeros(len(one.tokens), dtype=torch.bool)
        trained[one.num_prompt :] = True
        ids = torch.tensor(one.tokens)
        row = TrainingRow("r", "g", ids, trained, torch.zeros(len(ids)), advantage=0.0)
        logprobs, _ = model.logprobs(pack([row]).to(model.device))
        found += (logprobs.double().cpu() - torch.tensor(one.logprobs).double()).tolist()
    return found


def _mean_logprob(sampled: Sequence[Sampled]) -> float:
    values = [value for one in sampled for value in one.logprobs]
    return sum(values) / len(values)


def _reset_peak(device: str) -> None:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _peak(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device == "cuda" else 0
