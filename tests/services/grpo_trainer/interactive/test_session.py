"""Interactive training: gradients add up, groups are whole, losses are the losses, versions are lines."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from tests.services.grpo_trainer.bench import MODEL, World
from tests.services.grpo_trainer.interactive.trainers import (
    SGD_LIKE,
    batch,
    inline,
    passing,
    sft_row,
    trainer_on,
)
from tests.services.grpo_trainer.learners import distance

from episodes.identity import Split
from grpo_trainer.domain.errors import (
    HeadMoved,
    HeldOutInput,
    InvalidInput,
    LostGradients,
    ModelBusy,
    NothingAccumulated,
    PartialGroup,
    RequestIdReused,
    StaleForward,
    UnknownForward,
    UnknownModel,
    UnknownTrajectory,
)
from grpo_trainer.interactive.inputs import Lora, StoredInput
from grpo_trainer.interactive.state import Update
from grpo_trainer.interactive.wire import datum_to_wire
from identities.entities import checkpoint_id
from upcycle.train.custom import weights_of
from upcycle.train.results import DatumTensors, datum_of


async def test_two_passes_and_an_update_are_one_bigger_batch(world: World) -> None:
    whole, halves = World(world.folder / "whole"), World(world.folder / "halves")
    await whole.publish_base()
    await halves.publish_base()
    async with trainer_on(whole) as trainer:
        await trainer.forward_backward("a", batch(), group_size=4)
        await trainer.optim_step("b")
        one = await trainer.weights(1)
    async with trainer_on(halves) as trainer:
        await trainer.forward_backward("a", batch()[:4], group_size=4)
        await trainer.forward_backward("b", batch()[4:], group_size=4)
        await trainer.optim_step("c")
        two = await trainer.weights(1)
        base = await trainer.weights(0)
    assert distance(one, two) < 1e-6
    assert distance(one, base) > 1e-5


async def test_substeps_change_no_gradient(world: World) -> None:
    norms = []
    async with trainer_on(world) as trainer:
        for substeps in (1, 3, 8, 50):
            await trainer.forward_backward(f"f{substeps}", batch(), group_size=4, num_substeps=substeps)
            done = await trainer.optim_step(f"o{substeps}", keep_head=True)
            norms.append(done.metrics["grad_norm"])
            await trainer.registry.set_head(MODEL, 0)
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-5)


def importance(
    data: list[DatumTensors], logprobs: list[torch.Tensor]
) -> tuple[torch.Tensor, dict[str, float]]:
    """The built-in loss, written by a caller."""
    loss, count = logprobs[0].new_zeros(()), 0.0
    for datum, policy in zip(data, logprobs, strict=True):
        ratio = torch.exp(policy - torch.tensor(datum.sampling_logprobs))
        mask = torch.tensor(datum.mask)
        loss = loss - (ratio * datum.advantage * mask).sum()
        count += float(mask.sum())
    return loss / count, {"count": count}


async def test_a_custom_loss_has_the_gradient_of_the_built_in_one(world: World) -> None:
    other = World(world.folder / "other")
    await other.publish_base()
    async with trainer_on(world) as trainer:
        measured = await trainer.forward_backward("a", batch(), group_size=4)
        await trainer.optim_step("b")
        built_in = await trainer.weights(1)
    async with trainer_on(other) as trainer:
        asked = passing(batch(), group_size=4)
        forward_id, version, data = await trainer.sessions.once(
            MODEL, "f", b"", lambda one: one.forward(asked)
        )
        tensors = [datum_of(datum_to_wire(one)) for one in data]
        weights, metrics = weights_of(tensors, importance)
        await trainer.sessions.once(
            MODEL, "g", b"", lambda one: one.backward("g", forward_id, weights, metrics)
        )
        done = await trainer.optim_step("h")
        custom = await trainer.weights(1)
    assert version == 0
    assert done.metrics["loss"] == pytest.approx(measured.metrics["loss"], abs=1e-6)
    assert distance(built_in, custom) < 1e-7
    assert [d.group_index for d in data] == [0] * 4 + [1] * 4
    assert data[0].advantage == pytest.approx(1.0 - 0.375)


async def test_sft_raises_the_likelihood_of_its_data(world: World) -> None:
    rows = [sft_row(seed) for seed in range(4)]
    losses = []
    async with trainer_on(world) as trainer:
        for step in range(4):
            measured = await trainer.forward_backward(f"f{step}", rows, loss="cross_entropy")
            losses.append(measured.metrics["loss"])
            assert measured.metrics["tokens"] == 16
            await trainer.optim_step(f"o{step}", SGD_LIKE.__class__(1e-2))
    assert losses[0] == pytest.approx(math.log(64), rel=0.1)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.3


async def test_the_gradient_of_sft_equals_that_of_torch(world: World) -> None:
    from transformers import AutoModelForCausalLM

    row = sft_row(3)
    async with trainer_on(world) as trainer:
        measured = await trainer.forward_backward("a", [row], loss="cross_entropy")
        done = await trainer.optim_step("b")
    model = AutoModelForCausalLM.from_pretrained(world.folder / "tiny-0-0")
    ids = torch.tensor([row.token_ids])
    logprobs = torch.log_softmax(model(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[1:, 0]
    loss = -logprobs.mean()
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    assert measured.metrics["loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
    assert done.metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-4)


@pytest.mark.parametrize(
    ("count", "how", "error", "says"),
    [
        (6, {"group_size": 4}, PartialGroup, "last group has 2 member"),
        (1, {}, PartialGroup, "group_size=1"),
        (4, {"group_size": 0}, InvalidInput, "group_size is 0"),
        (4, {"loss": "crossentropy"}, InvalidInput, "did you mean 'cross_entropy'"),
        (4, {"loss": "ppo", "config": {"clip": 0.1}}, InvalidInput, "clip_"),
        (4, {"loss": "cross_entropy", "group_size": 4}, InvalidInput, "leave it out"),
        (4, {"advantage": "grp"}, InvalidInput, "'grpo'"),
        (4, {"num_substeps": 0}, InvalidInput, "num_substeps"),
        (0, {}, InvalidInput, "empty"),
    ],
)
async def test_an_invalid_pass_is_refused_with_its_reason(
    world: World, count: int, how: dict[str, object], error: type[Exception], says: str
) -> None:
    async with trainer_on(world) as trainer:
        with pytest.raises(error, match=says):
            await trainer.forward_backward("a", batch(count), **how)
        with pytest.raises(NothingAccumulated, match="forward_backward"):
            await trainer.optim_step("b")


async def test_stored_trajectories_mix_with_inline_ones(world: World) -> None:
    async with trainer_on(world) as trainer:
        inputs = [
            StoredInput(trainer.library.add("traj-1", 1.0)),
            inline(1, 0.0),
            StoredInput(trainer.library.add("traj-2", None), reward=0.25),
            inline(2, 0.75),
        ]
        measured = await trainer.forward_backward("a", inputs, group_size=4)
        assert measured.metrics["reward_mean"] == pytest.approx(0.5)
        assert measured.trajectory_ids == ("traj-1", "traj-2")
        done = await trainer.optim_step("b")
        assert done.metrics["staleness_max"] == 0


async def test_a_group_is_of_one_task(world: World) -> None:
    async with trainer_on(world) as trainer:
        one, two = trainer.library.add("traj-1", 1.0, task="x"), trainer.library.add("traj-2", 0.0, task="y")
        with pytest.raises(PartialGroup, match="mixes tasks"):
            await trainer.forward_backward("a", [StoredInput(one), StoredInput(two)], group_size=2)


async def test_held_out_trajectories_never_train(world: World) -> None:
    async with trainer_on(world) as trainer:
        inputs = [StoredInput(trainer.library.add("traj-1", 1.0, split=Split.HELD_OUT)), inline(1, 0.0)]
        with pytest.raises(HeldOutInput, match="must never train"):
            await trainer.forward_backward("a", inputs)


async def test_unknown_models_and_losses_are_refused_by_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_trainer.interactive.preparing._INDEX_WAIT_S", 0.1)
    async with trainer_on(world) as trainer:
        with pytest.raises(UnknownModel, match="unknown"):
            await trainer.forward_backward("a", batch(), model="unknown")
        with pytest.raises(UnknownForward, match="call forward again"):
            await trainer.sessions.once(MODEL, "b", b"", lambda one: one.backward("b", "fwd-0", [], {}))
        with pytest.raises(UnknownTrajectory, match="traj-9"):
            await trainer.forward_backward("c", [StoredInput("traj-9"), inline(1, 0.0)])


async def test_a_backward_is_refused_after_the_weights_changed(world: World) -> None:
    async with trainer_on(world) as trainer:
        asked = passing(batch())
        forward_id, _, data = await trainer.sessions.once(MODEL, "f", b"", lambda one: one.forward(asked))
        weights = [[0.0] * len(one.logprobs) for one in data]
        await trainer.forward_backward("a", batch())
        await trainer.optim_step("b")
        with pytest.raises(StaleForward, match="computed at v0"):
            await trainer.sessions.once(
                MODEL, "g", b"", lambda one: one.backward("g", forward_id, weights, {})
            )


async def test_a_repeated_request_changes_nothing(world: World) -> None:
    async with trainer_on(world) as trainer:
        first = await trainer.forward_backward("a", batch(), group_size=4)
        assert await trainer.forward_backward("a", batch(), group_size=4) is first
        with pytest.raises(RequestIdReused, match="another request"):
            await trainer.forward_backward("a", batch(4), group_size=4)
        done = await trainer.optim_step("b", gradients=("a",))
        assert await trainer.optim_step("b", gradients=("a",)) is done
        assert done.metrics["tokens"] == first.metrics["tokens"]
        with pytest.raises(NothingAccumulated):
            await trainer.optim_step("c")
    assert [done.step, done.version, done.is_head] == [1, 1, True]
    assert world.heads[MODEL].version == 1


async def test_calls_are_refused_while_a_run_trains_the_model(world: World) -> None:
    async with trainer_on(world) as trainer:
        await trainer.forward_backward("a", batch())
        trainer.leases.queue_run(MODEL, "run-1")
        with pytest.raises(ModelBusy, match="run run-1 trains"):
            await trainer.optim_step("b")
        trainer.leases.end_run(MODEL, "run-1")
        with pytest.raises(LostGradients, match="forward_backward again"):
            await trainer.optim_step("c", gradients=("a",))


async def test_training_continues_from_a_head_that_was_set_elsewhere(world: World) -> None:
    async with trainer_on(world) as trainer:
        for step in (1, 2):
            await trainer.forward_backward(f"f{step}", batch())
            await trainer.optim_step(f"o{step}")
        await trainer.forward_backward("lost", batch())
        await trainer.registry.set_head(MODEL, 0)
        with pytest.raises(HeadMoved, match="call forward_backward again"):
            await trainer.optim_step("x")
        await trainer.forward_backward("f3", batch())
        done = await trainer.optim_step("o3")
        assert (done.step, done.version) == (3, 3)
        first, branch = await trainer.weights(1), await trainer.weights(3)
        assert distance(first, branch) < 1e-7
    saved = world.recorder.events["checkpoint.saved/default/ckpt-tiny-v00000003"]
    assert saved.parent_checkpoint_id == checkpoint_id(MODEL, 0)  # type: ignore[attr-defined]


async def test_models_train_side_by_side(world: World) -> None:
    await world.publish_base(model="other", seed=1)
    async with trainer_on(world, max_open=1) as trainer:
        await trainer.forward_backward("a", batch())
        await trainer.forward_backward("a", batch(), model="other")
        one, two = await trainer.optim_step("b"), await trainer.optim_step("b", model="other")
        assert (one.model, one.version, two.model, two.version) == (MODEL, 1, "other", 1)
        assert distance(await trainer.weights(1), await trainer.weights(1, model="other")) > 0.01
        await trainer.forward_backward("c", batch())
        assert (await trainer.optim_step("d")).version == 2


async def test_a_step_is_a_pass_and_an_update_under_one_request_id(world: World) -> None:
    async with trainer_on(world) as trainer:
        asked, update = passing(batch(), group_size=4), Update(SGD_LIKE)
        measured, done = await trainer.sessions.once(
            MODEL, "s", b"", lambda one: one.step("s", asked, update)
        )
        assert (measured.num_datums, done.version, done.metrics["tokens"] > 0) == (8, 1, True)


async def test_training_adapters_leaves_the_base_unchanged(world: World) -> None:
    lora = Lora(rank=2)
    async with trainer_on(world) as trainer:
        for step in (1, 2):
            await trainer.forward_backward(f"f{step}", batch(), group_size=4, lora=lora)
            await trainer.optim_step(f"o{step}")
        with pytest.raises(NothingAccumulated):
            await trainer.optim_step("o3")
        expected = await trainer.weights(2)
        await trainer.forward_backward("kept", batch(), group_size=4)
        with pytest.raises(InvalidInput, match="gradients of adapters of rank 2"):
            await trainer.forward_backward("full", batch(), group_size=4, lora=Lora())
    other = World(world.folder / "other")
    await other.publish_base()
    registry = None
    for step in (1, 2):
        async with trainer_on(other, registry=registry) as trainer:
            registry = trainer.registry
            await trainer.forward_backward(
                f"f{step}", batch(), group_size=4, lora=lora if step == 1 else None
            )
            await trainer.optim_step(f"o{step}")
            found, base = await trainer.weights(step), await trainer.weights(0)
    assert distance(expected, found) == 0.0
    assert distance(base, found) > 1e-4


async def test_the_trained_parameters_may_change_between_steps(world: World) -> None:
    async with trainer_on(world) as trainer:
        for step, lora in enumerate((Lora(rank=2), Lora(), Lora(rank=3)), start=1):
            await trainer.forward_backward(f"f{step}", batch(), group_size=4, lora=lora)
            done = await trainer.optim_step(f"o{step}", keep_head=True)
            assert done.version == step
        one, two, three = [await trainer.weights(version) for version in (1, 2, 3)]
        assert distance(one, two) > 1e-6
        assert distance(two, three) > 1e-6
    saved = world.recorder.events["checkpoint.saved/default/ckpt-tiny-v00000003"]
    assert saved.parent_checkpoint_id == checkpoint_id(MODEL, 2)  # type: ignore[attr-defined]


class Counting:
    """A store that counts what it is asked for."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self.inner, name)


async def test_a_step_reads_only_what_other_processes_may_have_changed(world: World) -> None:
    store = Counting(world.store)
    async with trainer_on(world) as trainer:
        for adapter in (trainer.deps.states, trainer.deps.policies):
            vars(adapter)["_store"] = store
        for step in (1, 2):
            store.calls.clear()
            await trainer.forward_backward(f"f{step}", batch(), group_size=4)
            await trainer.optim_step(f"o{step}")
    # Versions and old states are listed; read are the parent's manifest, and whether ours is there already.
    assert (store.calls["list"], store.calls["read"]) == (2, 2)
