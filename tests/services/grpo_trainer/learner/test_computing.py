"""Ways to compute the same step: less memory, lower precision, other kernels, any architecture."""

from __future__ import annotations

from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.services.grpo_trainer.batches import config_of, policy, rollouts
from tests.services.grpo_trainer.learners import begun, options, spec, thread_of, weights
from tests.services.grpo_trainer.tiny import VOCAB
from tests.services.policy_engine.reference import reference_logprobs
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from grpo_math.objective import Objective, build_objective
from grpo_math.packing import TrainingRow
from grpo_trainer.domain.errors import InvalidTrainingSpec
from grpo_trainer.learner.optimization import StepOptions, accumulate
from grpo_trainer.learner.packed_model import (
    ModelOptions,
    PackedModel,
    UnsupportedModel,
    attention_path,
    layers_of,
    new_module,
)
from grpo_trainer.learner.rows import Credit, batch_rows

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ARCHITECTURES = [("qwen3", True), ("qwen3", False), ("llama", True), ("llama", False)]


def rows() -> list[TrainingRow]:
    return batch_rows(rollouts(3), credit=Credit("dr_grpo"), group_size=4).rows


def gradients(
    given: ModelOptions, *, dtype: torch.dtype = torch.float64, architecture: str = "qwen3"
) -> Tensor:
    """Flat gradient of one step of the same random model."""
    torch.manual_seed(0)
    model = PackedModel(new_module(config_of(architecture, tied=True), dtype=dtype), given)
    objective: Objective = build_objective("ppo", {"entropy_bonus": 0.01})
    assert (
        accumulate(model, rows(), StepOptions(objective, microbatch_tokens=60), max_row_tokens=0) is not None
    )
    parameters = [parameter for parameter in model.module.parameters() if parameter.grad is not None]
    assert all(parameter.grad.dtype == dtype for parameter in parameters)
    return torch.cat([parameter.grad.flatten().double() for parameter in parameters])


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_checkpointed_layers_have_the_same_gradient(architecture: str) -> None:
    given = ModelOptions(gradient_checkpointing=True)
    expected = gradients(ModelOptions(), architecture=architecture)
    assert apart(gradients(given, architecture=architecture), expected) <= 1e-12


def test_checkpointed_layers_keep_fewer_activations() -> None:
    def kept(given: ModelOptions) -> int:
        sizes: list[int] = []
        model = PackedModel(new_module(config_of("qwen3", tied=True)), given)

        def pack(tensor: Tensor) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            accumulate(model, rows(), StepOptions(build_objective()), max_row_tokens=0)
        return sum(sizes)

    # The recomputation saves again, one layer at a time; what is kept at once is less than half.
    assert kept(ModelOptions(gradient_checkpointing=True)) < 2 * kept(ModelOptions())


def test_a_checkpointed_layer_drops_nothing_out() -> None:
    model = PackedModel(new_module(config_of("llama", tied=True)), ModelOptions(gradient_checkpointing=True))
    [first, *_] = layers_of(model.module)
    assert first.training
    assert not any(part.training for part in first.children())


def test_bf16_computes_in_bf16_and_keeps_float32_weights() -> None:
    exact = gradients(ModelOptions(), dtype=torch.float32)
    rounded = gradients(ModelOptions(precision="bf16"), dtype=torch.float32)
    assert 1e-5 < apart(rounded, exact) < 5e-2


async def test_the_canary_is_of_the_published_weights_whatever_the_layers_compute_in(tmp_path: Path) -> None:
    """Engines of float32 prove a reload to 1e-4 nats (policy_engine/domain.py); bfloat16 is off by more."""
    base, given = policy(tmp_path / "base"), options(1, model=ModelOptions(precision="bf16"))
    with thread_of(given) as thread:
        async with begun(thread, base, spec()) as learner:
            assert (await learner.step(rollouts(1))).applied
            snapshot = await learner.snapshot()
            await snapshot.export(tmp_path / "trained")
    apart = [
        abs(said - exact)
        for ids, logprobs in snapshot.canary
        for said, exact in zip(logprobs, reference_logprobs(tmp_path / "trained", ids), strict=True)
    ]
    assert len(apart) > 8
    assert max(apart) < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.study)])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_compiled_layers_have_the_same_gradient(
    checkpointing: bool, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aot_eager traces forward and backward as inductor does, and compiles no kernels."""
    torch.compiler.reset()
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend=backend))
    given = ModelOptions(compiled=True, gradient_checkpointing=checkpointing)
    expected = gradients(ModelOptions(), dtype=torch.float32)
    assert apart(gradients(given, dtype=torch.float32), expected) <= 1e-5


PATHS = [
    ("auto", CPU, None, 64, "bf16", "buckets"),
    ("buckets", GPU, (9, 0), 64, "bf16", "buckets"),
    ("auto", GPU, (9, 0), 64, "bf16", "flex"),
    ("auto", GPU, (9, 0), 64, "fp32", "buckets"),
    ("flex", GPU, (9, 0), 64, "fp32", "flex"),
    ("auto", GPU, (7, 5), 64, "bf16", "buckets"),
    ("auto", GPU, (9, 0), 8, "bf16", "buckets"),
]


@pytest.mark.parametrize(("wanted", "device", "capability", "head_dim", "precision", "path"), PATHS)
def test_the_kernel_follows_device_and_precision(
    wanted: str,
    device: torch.device,
    capability: tuple[int, int] | None,
    head_dim: int,
    precision: str,
    path: str,
) -> None:
    found = attention_path(wanted, device, capability=capability, head_dim=head_dim, precision=precision)
    assert found == path


@pytest.mark.parametrize(("device", "capability"), [(GPU, (7, 5)), (CPU, None)])
def test_a_kernel_that_the_device_lacks_is_refused(
    device: torch.device, capability: tuple[int, int] | None
) -> None:
    with pytest.raises(UnsupportedModel, match="use buckets"):
        attention_path("flex", device, capability=capability, head_dim=64)


@pytest.mark.parametrize("wrong", [{"precision": "fp8"}, {"attention": "ring"}])
def test_unknown_ways_to_compute_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidTrainingSpec, match="does not exist"):
        ModelOptions(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("architecture", "tied"), ARCHITECTURES)
async def test_a_trained_policy_is_what_transformers_reads(
    architecture: str, tied: bool, tmp_path: Path
) -> None:
    base = policy(tmp_path / "base", architecture, tied=tied)
    with thread_of(options(1)) as thread:
        async with begun(thread, base, spec()) as learner:
            assert (await learner.step(rollouts(1))).applied
            trained = await weights(learner, tmp_path / "trained")
            model, _ = learner._loaded()
            ids = torch.randint(VOCAB, (2, 24), generator=torch.Generator().manual_seed(5))
            read = AutoModelForCausalLM.from_pretrained(tmp_path / "trained", dtype=torch.float32)
            with torch.no_grad():
                plain = AutoModelForCausalLM.from_config(model.module.config, attn_implementation="sdpa")
                plain.load_state_dict(model.module.state_dict())
                assert torch.equal(read(ids).logits, plain(ids).logits)
    assert ("lm_head.weight" in trained) is not tied
    assert read.config.tie_word_embeddings is tied


@pytest.mark.parametrize("changes", [{"dtype": torch.bfloat16}, {"max_shard_size": "8KB"}])
async def test_a_base_in_bf16_or_in_shards_trains_too(changes: dict[str, Any], tmp_path: Path) -> None:
    given = dict(changes)
    torch.manual_seed(0)
    module = new_module(config_of("llama", tied=False), dtype=given.pop("dtype", torch.float32))
    module.save_pretrained(tmp_path / "base", **given)
    with thread_of(options(1)) as thread:
        async with begun(thread, tmp_path / "base", spec()) as learner:
            assert (await learner.step(rollouts(1))).applied
            await (await learner.snapshot()).export(tmp_path / "trained")
            model, _ = learner._loaded()
            expected = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "trained", dtype=torch.float32).state_dict()
    assert read.keys() == expected.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in expected.items())
