"""Interactive batches with trajectories of which no token may be trained: they count, and teach nothing."""

from __future__ import annotations

import pytest
from tests.services.grpo_trainer.bench import MODEL, World
from tests.services.grpo_trainer.interactive.test_service import serving
from tests.services.grpo_trainer.interactive.trainers import InteractiveTrainer, inline, passing, trainer_on
from tests.services.grpo_trainer.learners import distance

from episodes.identity import Split
from grpo_trainer.domain.errors import HeldOutInput, InvalidInput, NothingAccumulated
from grpo_trainer.interactive.inputs import InlineInput, RowInput, Sample, StoredInput, TrainingInput
from upcycle import TrainingClient

THIRD = 1 / 3


def stored(trainer: InteractiveTrainer, *rewards: float | None, unreadable: int = 1) -> list[TrainingInput]:
    """Trajectories of one task; `unreadable` is the index of the one that cannot be trained."""
    return [
        StoredInput(trainer.library.add(f"traj-{at}", reward, unreadable=at == unreadable))
        for at, reward in enumerate(rewards)
    ]


def row(name: str, advantage: float) -> RowInput:
    """What `Library.add` stores, with hand-worked credit."""
    sampled = {3: -4.0, 4: -4.1, 6: -4.2, 7: -4.3}
    return RowInput(
        name=name,
        token_ids=[1, 2, 3, 4, 5, 6, 7, 8],
        weights=[],
        logprobs=[sampled.get(at, 0.0) for at in range(8)],
        advantages=[advantage if at in sampled else 0.0 for at in range(8)],
        temperature=1.0,
        reward=None,
    )


async def test_an_untrainable_trajectory_counts_in_its_groups_baseline(world: World) -> None:
    async with trainer_on(world) as trainer:
        asked = passing(stored(trainer, 1.0, 0.0, 0.0), group_size=3)
        _, _, data = await trainer.sessions.once(MODEL, "f", b"", lambda one: one.forward(asked))
        assert [one.input_index for one in data] == [0, 2]
        assert [one.group_index for one in data] == [0, 0]
        assert [one.advantage for one in data] == pytest.approx([2 * THIRD, -THIRD])
        measured = await trainer.forward_backward("a", asked.inputs, group_size=3)
    assert measured.metrics["untrainable"] == 1
    assert (measured.metrics["num_trajectories"], measured.num_datums) == (3, 2)
    assert measured.metrics["reward_mean"] == pytest.approx(THIRD)
    assert measured.trajectory_ids == ("traj-0", "traj-1", "traj-2")


async def test_only_the_reward_of_an_untrainable_trajectory_affects_the_gradient(world: World) -> None:
    other = World(world.folder / "other")
    await other.publish_base()
    async with trainer_on(world) as trainer:
        await trainer.forward_backward("a", stored(trainer, 1.0, 0.0, 0.0), group_size=3)
        done = await trainer.optim_step("b")
        found, base = await trainer.weights(1), await trainer.weights(0)
    async with trainer_on(other) as trainer:
        await trainer.forward_backward("a", [row("one", 2 * THIRD), row("two", -THIRD)])
        await trainer.optim_step("b")
        expected = await trainer.weights(1)
    assert distance(found, expected) < 1e-7
    assert distance(found, base) > 1e-5
    assert done.metrics["untrainable"] == 1


async def test_a_forward_pass_has_no_datum_for_an_untrainable_trajectory(world: World) -> None:
    async with trainer_on(world) as trainer:
        asked = passing(stored(trainer, 1.0, 0.0, 0.0), group_size=3)
        forward_id, _, data = await trainer.sessions.once(MODEL, "f", b"", lambda one: one.forward(asked))
        weights = [[0.5] * len(one.logprobs) for one in data]
        measured = await trainer.sessions.once(
            MODEL, "g", b"", lambda one: one.backward("g", forward_id, weights, {})
        )
    assert (measured.num_datums, measured.metrics["untrainable"]) == (2, 1)


async def test_a_step_sums_the_untrainable_trajectories_of_its_passes(world: World) -> None:
    async with trainer_on(world) as trainer:
        await trainer.forward_backward("a", stored(trainer, 1.0, 0.0, 0.0), group_size=3)
        await trainer.forward_backward("b", stored(trainer, 1.0, 0.0, unreadable=0), group_size=2)
        done = await trainer.optim_step("c")
    assert done.metrics["untrainable"] == 2


async def test_a_batch_of_untrainable_trajectories_is_refused_without_effect(world: World) -> None:
    async with trainer_on(world) as trainer:
        alone = [StoredInput(trainer.library.add(f"t{n}", float(n), unreadable=True)) for n in range(2)]
        for how in ({"group_size": 2}, {"loss": "cross_entropy"}):
            with pytest.raises(InvalidInput, match="t0: no token of it may be trained, nor of the other 1"):
                await trainer.forward_backward("a", alone, **how)
        with pytest.raises(InvalidInput, match=r"t0: no token of it may be trained$"):
            await trainer.forward_backward("a", alone[:1], group_size=1)
        with pytest.raises(NothingAccumulated):
            await trainer.optim_step("b")


async def test_a_trajectory_without_sampled_tokens_is_untrainable(world: World) -> None:
    silent = InlineInput("silent", (Sample([1, 2, 3], [], []),), 1.0, 0.0)
    async with trainer_on(world) as trainer:
        measured = await trainer.forward_backward("a", [inline(0, 1.0), silent, inline(1, 0.5)], group_size=3)
    assert measured.metrics["untrainable"] == 1
    assert measured.metrics["reward_mean"] == 0.5


async def test_sft_leaves_an_untrainable_trajectory_out(world: World) -> None:
    async with trainer_on(world) as trainer:
        measured = await trainer.forward_backward("a", stored(trainer, 1.0, 1.0), loss="cross_entropy")
    assert (measured.metrics["tokens"], measured.metrics["untrainable"]) == (4, 1)


async def test_an_untrainable_trajectory_needs_a_reward_and_must_not_be_held_out(world: World) -> None:
    async with trainer_on(world) as trainer:
        trainer.library.add("held", 0.0, unreadable=True, split=Split.HELD_OUT)
        with pytest.raises(HeldOutInput):
            await trainer.forward_backward("a", [inline(0, 1.0), StoredInput("held")])
        with pytest.raises(InvalidInput, match="reward nan: it must be graded"):
            await trainer.forward_backward("a", stored(trainer, 1.0, float("nan"), 0.0))


async def test_the_client_reads_the_number_of_untrainable_trajectories(world: World) -> None:
    async with trainer_on(world) as trainer, serving(trainer) as where:
        stored(trainer, 1.0, 0.0, 0.0)
        client = TrainingClient(MODEL, runtime=where)
        done = await client.step(["traj-0", "traj-1", "traj-2"], learning_rate=1e-3, group_size=3)
        passed = await client.forward(["traj-0", "traj-1", "traj-2"], group_size=3)
    assert (done.metrics["untrainable"], done.num_datums) == (1, 2)
    assert [one.input_index for one in passed.data] == [0, 2]
