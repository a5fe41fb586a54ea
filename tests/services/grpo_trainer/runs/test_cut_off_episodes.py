"""Episodes that a limit cut off: their rewards are compared, and where the run says so their tokens do not
train."""

from __future__ import annotations

from typing import Any

import pytest
from tests.services.grpo_trainer.bench import MIXED, Episodes, Trainer, World, submission
from tests.services.grpo_trainer.runs.test_groups import SPEC, member

from grpo_trainer.domain.signal import why_no_signal
from grpo_trainer.domain.spec import training_spec
from upcycle.api.trajectory.v1 import trajectory_pb2 as trajectory

CUT_OFF = (trajectory.STOP_REASON_MAX_TOKENS, trajectory.STOP_REASON_MAX_TURNS)
LEAVE_OUT = {"cut_off_episodes": "leave_out"}


async def step_of(world: World, *, cut_off: tuple[int, ...], **options: Any) -> dict[str, float]:
    """Metrics of a step on one group, some of whose members were cut off."""
    await world.publish_base()
    world.stream.append(submission(steps=1, prompts_per_step=1, **options))
    facts = await Episodes(world).facts(0, MIXED)
    for number, of in enumerate(cut_off):
        facts[of].stop_reason = CUT_OFF[number % 2]
    async with Trainer(world):
        for fact in facts:
            world.stream.append(fact)
        step = await world.published("step.completed/run-0000000000ab/1")
    assert list(step.trajectory_ids) == [one.episode.trajectory_id for one in facts]
    return dict(step.metrics.values)


@pytest.mark.parametrize(("options", "rows"), [({}, 4), (LEAVE_OUT, 2)])
async def test_their_tokens_train_unless_the_run_leaves_them_out(
    world: World, options: dict[str, Any], rows: int
) -> None:
    found = await step_of(world, cut_off=(1, 3), **options)
    assert (found["rows"], found["trajectories"], found["no_eos_fraction"]) == (rows, 4, 0.5)
    assert found["reward_mean"] == 0.5, "their rewards count"


async def test_a_group_that_was_cut_off_whole_teaches_nothing_and_says_so(world: World) -> None:
    await world.publish_base()
    world.stream.append(submission(steps=1, prompts_per_step=1, **LEAVE_OUT))
    async with Trainer(world):
        for fact in await Episodes(world).facts(0, MIXED):
            fact.stop_reason = trajectory.STOP_REASON_MAX_TURNS
            world.stream.append(fact)
        settled = await world.settled("run-0000000000ab-g00000")
    assert (settled.outcome, settled.reason) == ("excluded", "zero_spread")


def test_what_a_whole_cut_off_group_says() -> None:
    of = training_spec(run_id="r", model="m", group_size=2, **LEAVE_OUT)
    cut = [member(number, number, cut_off=True) for number in range(2)]
    said = "a limit of tokens or turns cut off all 2 (cut_off_episodes=leave_out)"
    assert why_no_signal(of, cut) == said
    assert why_no_signal(of, [cut[0], member(1, 1)]) is None
    assert why_no_signal(SPEC, cut) is None
