"""Adapters: only they change, sessions on one base do not see one another, and what is published is whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.services.grpo_trainer.batches import config_of, policy, rollouts
from tests.services.grpo_trainer.bench import MIXED, MODEL, RUN, Episodes, Trainer, World, submission
from tests.services.grpo_trainer.learners import begun, same, thread_of
from tests.services.grpo_trainer.tiny import new_model
from torch import Tensor

from grpo_math.packing import pack
from grpo_trainer.domain.errors import InvalidTrainingSpec
from grpo_trainer.domain.spec import TrainingSpec, training_spec
from grpo_trainer.learner.core import LearnerCore, canary
from grpo_trainer.learner.lora import AdaptedModel
from grpo_trainer.learner.packed_model import ModelOptions, load_model
from grpo_trainer.learner.ranks import Ranks
from grpo_trainer.learner.rows import Credit, batch_rows
from grpo_trainer.learner.torch_learner import LearnerOptions, LearnerThread, TorchLearner
from policy_files import adapter_of, tensors_of_directory
from training_states.files import read_tensors
from upcycle.api.training.v1 import events_pb2 as events


def spec(**changes: Any) -> TrainingSpec:
    given: dict[str, Any] = {"lora_rank": 4, "learning_rate": 1e-2, **changes}
    return training_spec(run_id="run-lora", model=MODEL, group_size=4, **given)


@pytest.fixture
def thread() -> Iterator[LearnerThread]:
    with thread_of(LearnerOptions(num_threads=1)) as made:
        yield made


def adapted(learner: TorchLearner) -> AdaptedModel:
    model, _ = learner._loaded()
    assert isinstance(model, AdaptedModel)
    return model


def numbers(learner: TorchLearner) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in adapted(learner).adapter.parameters.items()}


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
@pytest.mark.parametrize("tied", [True, False])
async def test_a_step_changes_adapters_only_and_what_is_published_is_the_same_policy(
    thread: LearnerThread, tmp_path: Path, architecture: str, tied: bool
) -> None:
    base = policy(tmp_path / "base", architecture, tied=tied)
    async with begun(thread, base, spec()) as learner:
        before = numbers(learner)
        assert all(not value.any() for name, value in before.items() if "lora_B" in name)
        for seed in range(3):
            assert (await learner.step(rollouts(seed))).applied
        after = numbers(learner)
        assert not any(torch.equal(before[name], after[name]) for name in before)
        module = adapted(learner).module
        frozen = {n.replace(".base_layer", ""): p for n, p in module.named_parameters() if "lora_" not in n}
        untouched = load_file(base / "model.safetensors")
        assert all(torch.equal(untouched[name], frozen[name]) for name in frozen)

        await (await learner.snapshot()).export(tmp_path / "published")
        merged = load_model(tmp_path / "published", device="cpu")
        batch = pack(batch_rows(rollouts(9), credit=Credit("dr_grpo"), group_size=4).rows)
        with torch.no_grad():
            expected, found = adapted(learner).logprobs(batch)[0], merged.logprobs(batch)[0]
            unadapted = load_model(base, device="cpu").logprobs(batch)[0]
        assert (expected - found).abs().max() < 1e-5
        assert (expected - unadapted).abs().max() > 1e-2
    published = load_file(tmp_path / "published" / "model.safetensors")
    assert published.keys() == untouched.keys()
    _check_adapter(tmp_path / "published", untouched, published)
    assert tensors_of_directory(tmp_path / "published").keys() == untouched.keys(), "of whole weights alone"


def _check_adapter(directory: Path, base: dict[str, Tensor], merged: dict[str, Tensor]) -> None:
    """The version's adapter in PEFT's format, added to its base, is the version."""
    info = adapter_of(directory)
    assert info is not None
    assert (info.base_digest, info.rank) == ("base", 4)
    config = json.loads((info.folder / "adapter_config.json").read_text())
    adapter = load_file(info.folder / "adapter_model.safetensors")
    layers = {name.removesuffix(".lora_A.weight") for name in adapter if "lora_A" in name}
    assert {layer.rpartition(".")[2] for layer in layers} == set(config["target_modules"])
    for layer in layers:
        name = layer.removeprefix("base_model.model.") + ".weight"
        delta = adapter[f"{layer}.lora_B.weight"] @ adapter[f"{layer}.lora_A.weight"]
        found = base[name] + config["lora_alpha"] / config["r"] * delta
        assert torch.allclose(found, merged[name], atol=1e-6)


async def test_a_base_in_several_files_is_merged_all_the_same(thread: LearnerThread, tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = new_model(config_of("llama", tied=False))
    made.module.save_pretrained(tmp_path / "base", max_shard_size="20KB")
    assert len(list((tmp_path / "base").glob("*.safetensors"))) > 1
    async with begun(thread, tmp_path / "base", spec()) as learner:
        await learner.step(rollouts(0))
        snapshot = await learner.snapshot()
        await snapshot.export(tmp_path / "published")
    rows = batch_rows(rollouts(0), credit=Credit("dr_grpo"), group_size=4).rows[:8]
    proofs = canary(load_model(tmp_path / "published", device="cpu"), rows)
    for (ids, expected), (same_ids, found) in zip(snapshot.canary, proofs, strict=True):
        assert ids == same_ids
        assert found == pytest.approx(expected, abs=1e-5)


async def test_two_sessions_on_one_base_end_with_the_bits_of_each_alone(
    thread: LearnerThread, tmp_path: Path
) -> None:
    base = policy(tmp_path / "base")
    left_spec, right_spec = spec(), spec(seed=1, lora_rank=2, lora_targets="q_proj, down_proj")
    alone = []
    for wanted, seeds in ((left_spec, (0, 1, 2)), (right_spec, (5, 6, 7))):
        async with begun(thread, base, wanted) as learner:
            for seed in seeds:
                await learner.step(rollouts(seed))
            alone.append((numbers(learner), (await learner.snapshot()).canary))
    async with begun(thread, base, left_spec) as left, begun(thread, base, right_spec) as right:
        assert adapted(left).module is adapted(right).module
        for one, other in zip((0, 1, 2), (5, 6, 7), strict=True):
            await left.step(rollouts(one))
            await right.step(rollouts(other))
            await right.snapshot()
        together = [(numbers(each), (await each.snapshot()).canary) for each in (left, right)]
        await right.close()
        assert (await left.step(rollouts(3))).applied
    for (weights, proofs), (also, again) in zip(alone, together, strict=True):
        assert same(weights, also)
        assert proofs == again


async def test_a_resumed_session_goes_on_with_the_same_bits_and_its_state_holds_no_base(
    thread: LearnerThread, tmp_path: Path
) -> None:
    base = policy(tmp_path / "base")
    async with begun(thread, base, spec()) as learner:
        await learner.step(rollouts(0))
        await (await learner.snapshot()).save(tmp_path / "state")
        await learner.step(rollouts(1))
        expected = numbers(learner)
    stored = read_tensors(tmp_path / "state")
    assert all("lora_" in name for name in stored if name.startswith(("model/", "optimizer/")))
    resumed = TorchLearner(thread)
    await resumed.resume(spec(), base, tmp_path / "state")
    await resumed.step(rollouts(1))
    assert same(expected, numbers(resumed))
    await resumed.close()


async def test_the_reference_of_adapters_is_their_base_without_them(
    thread: LearnerThread, tmp_path: Path
) -> None:
    base = policy(tmp_path / "base")
    wanted = spec(loss_config={"kl_coefficient": 0.3})
    batch = pack(batch_rows(rollouts(9), credit=Credit("dr_grpo"), group_size=4).rows)
    async with begun(thread, base, wanted) as learner, begun(thread, base, spec(seed=3)) as other:
        for seed in range(2):
            await learner.step(rollouts(seed))
            await other.step(rollouts(seed))
        reference = adapted(learner).without_adapter()
        assert reference.module is adapted(other).module
        with torch.no_grad():
            found, _ = reference.logprobs(batch)
            expected, _ = load_model(base, device="cpu").logprobs(batch)
        assert torch.allclose(found, expected, atol=1e-6)
        before = numbers(learner)
        numbers_of_step = await learner.step(rollouts(2))
        assert not any(torch.equal(before[name], value) for name, value in numbers(learner).items())
        assert numbers_of_step.applied
    async with begun(thread, base, spec()) as free, begun(thread, base, wanted) as held:
        for one in (free, held):
            await one.step(rollouts(0))
            await one.step(rollouts(1))
        assert not same(numbers(free), numbers(held))


async def test_a_base_leaves_memory_with_its_last_session(thread: LearnerThread, tmp_path: Path) -> None:
    base = policy(tmp_path / "base")
    async with begun(thread, base, spec()) as left:
        async with begun(thread, base, spec(seed=1)) as right:
            bases = adapted(right)._base
        names = [name for name, _ in adapted(left).module.named_parameters()]
        assert sum(".lora_A." in name for name in names) == len(adapted(left).adapter.parameters) // 2
        assert bases.is_used
    assert not bases.is_used


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora_targets": "q_proj,router"}, "router.*it has down_proj, gate_proj, k_proj"),
        ({"lora_targets": "lm_head"}, "no linear layers"),
        ({"lora_rank": -1}, "lora_rank must be >= 0"),
        ({"lora_rank": 0, "lora_alpha": 8.0}, "lora_alpha is set but lora_rank is 0"),
    ],
)
async def test_what_cannot_be_adapted_is_refused_at_the_start(
    thread: LearnerThread, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidTrainingSpec, match=message):
        await TorchLearner(thread).begin(spec(**changes), policy(tmp_path / "base"))


async def test_activations_that_are_computed_again_give_the_same_adapters(tmp_path: Path) -> None:
    base, found = policy(tmp_path / "base"), []
    for again in (False, True):
        model = ModelOptions(gradient_checkpointing=again)
        with thread_of(LearnerOptions(num_threads=1, model=model)) as thread:
            async with begun(thread, base, spec()) as learner:
                await learner.step(rollouts(0))
                found.append(numbers(learner))
    for name, value in found[0].items():
        assert torch.allclose(value, found[1][name], atol=1e-6), name


async def test_compiled_layers_take_no_adapters(tmp_path: Path) -> None:
    with (
        thread_of(LearnerOptions(num_threads=1, model=ModelOptions(compiled=True))) as thread,
        pytest.raises(InvalidTrainingSpec, match="compiled=True"),
    ):
        await TorchLearner(thread).begin(spec(), policy(tmp_path / "base"))


def test_several_ranks_take_no_adapters(tmp_path: Path) -> None:
    core = LearnerCore(LearnerOptions(num_threads=1), Ranks(0, 2))
    with pytest.raises(InvalidTrainingSpec, match="ranks=2"):
        core.load(spec(), policy(tmp_path / "base"), None)


def test_a_field_at_its_default_changes_no_digest() -> None:
    plain = TrainingSpec("run-0", MODEL, 4)
    assert plain.digest() == TrainingSpec("run-0", MODEL, 4, lora_rank=0, steps=100).digest()
    assert plain.digest() != TrainingSpec("run-0", MODEL, 4, lora_rank=1).digest()


async def test_two_models_on_one_base_train_adapters_side_by_side(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.publish_base()
    await world.publish_base(model="other")
    world.stream.append(submission(steps=2, prompts_per_step=1, lora_rank=2))
    world.stream.append(submission(run_id="run-2", model="other", steps=2, prompts_per_step=1, lora_rank=4))
    for index in range(2):
        await Episodes(world).group(index, MIXED)
        await Episodes(world, run_id="run-2").group(index, MIXED)
    async with Trainer(world) as trainer:
        await world.published("checkpoint.saved/default/ckpt-other-v00000002")
        await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v00000002")
        models = [trainer.sessions.get(run)._learner for run in (RUN, "run-2")]
        assert all(isinstance(one, TorchLearner) for one in models)
        left, right = (adapted(one) for one in models if isinstance(one, TorchLearner))
        assert left.module is right.module
    assert len(world.recorder.of(events.PolicyPublished)) == 4
    one, two, base = await world.weights(2), await world.weights(2, model="other"), await world.weights(0)
    changed = [name for name in base if not torch.equal(base[name], one[name])]
    assert changed
    assert all("proj" in name for name in changed)
    assert not torch.equal(one[changed[0]], two[changed[0]])
