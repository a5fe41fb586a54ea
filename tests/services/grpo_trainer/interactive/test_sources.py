"""Checkpoints of interactive training name the runs whose trajectories taught them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.services.grpo_trainer.bench import MODEL, World
from tests.services.grpo_trainer.interactive.trainers import inline, passing, trainer_on

from grpo_trainer.interactive.inputs import StoredInput, TrainingInput
from grpo_trainer.interactive.state import groups_after, interactive_state_from_json

FIRST, SECOND = "run-e1", "run-e2"


def group(trainer: Any, run_id: str, index: int, *, unreadable: bool = False) -> list[StoredInput]:
    """Two stored trajectories of one group."""
    name = f"{run_id}-g{index:05d}"
    return [
        StoredInput(
            trainer.library.add(
                f"traj-{name}-{reward:g}", reward, task=name, group=name, unreadable=unreadable
            )
        )
        for reward in (0.0, 1.0)
    ]


async def step(trainer: Any, number: int, *groups: Sequence[TrainingInput]) -> dict[str, int]:
    """One optimizer step with a pass per group; what its checkpoint says of its sources."""
    for index, inputs in enumerate(groups):
        await trainer.forward_backward(f"f{number}-{index}", inputs, group_size=2)
    done = await trainer.optim_step(f"o{number}")
    saved = trainer.world.recorder.events[f"checkpoint.saved/default/{done.checkpoint_id}"]
    return dict(saved.sources)


async def test_a_group_counts_once_for_each_run_over_all_steps_and_restarts(world: World) -> None:
    async with trainer_on(world) as trainer:
        own: list[TrainingInput] = [inline(1, 0.0), inline(2, 1.0)]
        assert await step(trainer, 1, own) == {}
        assert await step(
            trainer, 2, group(trainer, FIRST, 0), group(trainer, FIRST, 1), group(trainer, SECOND, 7)
        ) == {FIRST: 2, SECOND: 1}
        registry = trainer.registry
    async with trainer_on(world, registry=registry) as trainer:
        untrainable: list[TrainingInput] = [*group(trainer, SECOND, 8, unreadable=True), *own]
        assert await step(trainer, 3, group(trainer, FIRST, 1), group(trainer, FIRST, 3), untrainable) == {
            FIRST: 3,
            SECOND: 1,
        }
        await registry.set_head(MODEL, 2)  # its state is kept, and knows what version 2 was trained on
        assert await step(trainer, 4, group(trainer, SECOND, 9)) == {FIRST: 2, SECOND: 2}
        await registry.set_head(MODEL, 0)  # the base was not trained interactively
        assert await step(trainer, 5, group(trainer, SECOND, 9)) == {SECOND: 1}


async def test_a_step_with_a_custom_loss_names_its_sources(world: World) -> None:
    async with trainer_on(world) as trainer:
        asked = passing(group(trainer, FIRST, 0), group_size=2)
        forward_id, _, data = await trainer.sessions.once(MODEL, "f", b"", lambda one: one.forward(asked))
        weights = [[0.1] * len(one.logprobs) for one in data]
        await trainer.sessions.once(MODEL, "g", b"", lambda one: one.backward("g", forward_id, weights, {}))
        assert await step(trainer, 1) == {FIRST: 1}


async def test_a_state_is_read_back_to_the_bytes_that_were_written(world: World) -> None:
    async with trainer_on(world) as trainer:
        await step(trainer, 1, group(trainer, FIRST, 0))
        state = await trainer.deps.states.newest(MODEL)
    plain = json.loads(json.dumps(state.to_json()))
    again = interactive_state_from_json(plain)
    assert again.sources == {FIRST: 1}
    assert json.loads(json.dumps(again.to_json())) == plain


def test_groups_of_any_name_count_once() -> None:
    first = groups_after({}, [("run-a", "run-a-g00000"), ("run-a", "run-a-g00000"), ("run-b", "some group")])
    after = groups_after(json.loads(json.dumps(first)), [("run-a", "run-a-g00001"), ("run-b", "some group")])
    assert after["run-a"]["ranges"] == [[0, 1]]
    assert after["run-b"]["others"] == ["some group"]
