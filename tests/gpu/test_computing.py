"""The same gradient on a GPU as on the host, by every way to compute that the settings offer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.gpu.sizes import CUDA, config, rows
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from grpo_math.logprobs import token_logprobs
from grpo_math.objective import build_objective
from grpo_math.packing import TrainingRow, pack
from grpo_trainer.learner.optimization import StepOptions, accumulate
from grpo_trainer.learner.packed_model import ModelOptions, PackedModel, new_module

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]
MIB = 1 << 20


def model_on(device: str, given: ModelOptions, *, architecture: str = "qwen3") -> PackedModel:
    """The same random model on any device."""
    torch.manual_seed(0)
    return PackedModel(new_module(config(architecture)).to(device), given)


def gradient(
    device: str,
    given: ModelOptions,
    *,
    architecture: str = "qwen3",
    dtype: torch.dtype = torch.float32,
    of: list[TrainingRow] | None = None,
) -> Tensor:
    """Flat gradient of one step, on the host, in float64."""
    torch.manual_seed(0)
    model = PackedModel(new_module(config(architecture), dtype=dtype).to(device), given)
    options = StepOptions(build_objective("ppo", {"entropy_bonus": 0.01}), microbatch_tokens=1500)
    assert accumulate(model, of or rows(3), options, max_row_tokens=0) is not None
    found = [p.grad.flatten().double().cpu() for p in model.module.parameters() if p.grad is not None]
    return torch.cat(found)


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
@pytest.mark.parametrize("attention", ["buckets", "flex"])
def test_the_gradient_is_the_hosts(attention: str, architecture: str) -> None:
    exact = gradient("cpu", ModelOptions(), architecture=architecture, dtype=torch.float64)
    found = gradient(CUDA, ModelOptions(attention=attention), architecture=architecture)
    assert apart(found, exact) <= 1e-5


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_few_tokens_are_computed_too(precision: str) -> None:
    """Up to 128 tokens are less than one block of the kernel; torch fails to compile another one for them."""
    few = [row for row in rows(4, count=1, members=1, longest=3)][:1]
    few = [
        replace(
            few[0],
            token_ids=few[0].token_ids[90:],
            trained=few[0].trained[90:],
            sampler_logprobs=few[0].sampler_logprobs[90:],
            turns=None,
        )
    ]
    assert few[0].token_ids.shape[0] < 128
    exact = gradient("cpu", ModelOptions(), dtype=torch.float64, of=few)
    found = gradient(CUDA, ModelOptions(attention="flex", precision=precision), of=few)
    assert apart(found, exact) <= (1e-5 if precision == "fp32" else 5e-2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_buckets_are_fused_whatever_the_precision(precision: str) -> None:
    """Unfused attention holds all scores; here it is refused."""
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        found = gradient(CUDA, ModelOptions(attention="buckets", precision=precision))
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("attention", ["buckets", "flex"])
def test_bf16_is_close_and_not_equal(attention: str) -> None:
    exact = gradient("cpu", ModelOptions(), dtype=torch.float64)
    rounded = gradient(CUDA, ModelOptions(precision="bf16", attention=attention))
    assert 1e-4 < apart(rounded, exact) < 5e-2


def test_flex_attention_never_holds_the_scores_of_all_pairs() -> None:
    """Unfused, it holds them all for each of 4 heads: 1 GiB for 8,192 tokens."""
    model = model_on(CUDA, ModelOptions(attention="flex"))
    batch = pack(rows(5, count=12, members=4, longest=300)).to(CUDA)
    assert batch.num_unique_tokens > 4000
    model.logprobs(batch)[0].sum().backward()  # type: ignore[no-untyped-call]
    scores = batch.num_unique_tokens**2 * 4 * 4
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model.logprobs(batch)[0].sum().backward()  # type: ignore[no-untyped-call]
    assert torch.cuda.max_memory_allocated() - before < scores


def test_checkpointed_layers_have_the_same_gradient_in_less_memory() -> None:
    of = rows(5, count=12, members=4, longest=300)

    def peak(given: ModelOptions) -> tuple[Tensor, int]:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = gradient(CUDA, given, of=of)
        return found, torch.cuda.max_memory_allocated() - before

    gradient(CUDA, ModelOptions(attention="buckets"), of=of)
    plain, most = peak(ModelOptions(attention="buckets"))
    again, least = peak(ModelOptions(attention="buckets", gradient_checkpointing=True))
    assert apart(again, plain) <= 1e-5
    assert least < most


@pytest.mark.parametrize("checkpointing", [False, True])
def test_compiled_layers_have_the_same_gradient(checkpointing: bool) -> None:
    torch.compiler.reset()
    exact = gradient("cpu", ModelOptions(), dtype=torch.float64)
    given = ModelOptions(compiled=True, gradient_checkpointing=checkpointing)
    assert apart(gradient(CUDA, given), exact) <= 1e-5


@pytest.mark.parametrize("given", [ModelOptions(precision="bf16"), ModelOptions(attention="flex")])
def test_the_same_step_has_the_same_bits_where_flex_attention_computes(given: ModelOptions) -> None:
    first = gradient(CUDA, given)
    assert all(torch.equal(first, gradient(CUDA, given)) for _ in range(3))


def test_the_same_step_differs_by_rounding_only_where_buckets_compute() -> None:
    """Fused attention adds up gradients of keys in the order in which its blocks end."""
    first = gradient(CUDA, ModelOptions())
    assert all(apart(gradient(CUDA, ModelOptions()), first) < 1e-6 for _ in range(3))


def test_a_large_vocabulary_is_not_held_for_all_positions() -> None:
    vocabulary, positions, width = 151_936, 4096, 64
    generator = torch.Generator(device=CUDA).manual_seed(0)
    hidden = torch.randn(positions, width, generator=generator, device=CUDA, requires_grad=True)
    head = torch.randn(vocabulary, width, generator=generator, device=CUDA, requires_grad=True)
    labels = torch.randint(vocabulary, (positions,), generator=generator, device=CUDA)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    logprobs, entropies = token_logprobs(hidden, head, labels, temperature=torch.ones(positions, device=CUDA))
    (logprobs.sum() + entropies.sum()).backward()  # type: ignore[no-untyped-call]
    assert torch.cuda.max_memory_allocated() - before < 2560 * MIB  # 4,096 positions at once take 12 GiB
    log_p = torch.log_softmax(hidden[:8].double() @ head.double().t(), dim=1)
    expected = log_p.gather(1, labels[:8, None])[:, 0]
    assert torch.allclose(logprobs[:8].double(), expected, atol=1e-4)
