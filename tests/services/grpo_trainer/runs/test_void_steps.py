"""A step that the planner ended the run without stays unheard of, however long its policy's upload took."""

import asyncio
from pathlib import Path

import pytest
from tests.services.grpo_trainer.bench import MODEL, RUN, Trainer, World, submission
from tests.services.grpo_trainer.evaluations import EVALUATION, Evaluation, settled_id
from tests.services.grpo_trainer.runs.test_cancelled_runs import Gate, cancelled, until_closed

from grpo_trainer.domain.published import PublishedPolicy
from grpo_trainer.domain.states import SessionState
from grpo_trainer.runs.deps import RunDeps
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.training.v1 import events_pb2 as events


def released(world: World, group_id: str) -> None:
    """The planner settles a group that the trainer did not answer for in time."""
    fact = events.GroupSettled(
        group_id=group_id,
        run_id=RUN,
        model=MODEL,
        outcome="released",
        reason="run_over",
        source_run_id=EVALUATION,
    )
    world.recorder.decided_by_another(fact, settled_id(group_id))


@pytest.mark.parametrize("by_the_planner", [2, 1])
async def test_a_step_whose_upload_outlasts_the_planner_is_never_announced(
    world: World, by_the_planner: int
) -> None:
    """Also where the planner has got to one of the two groups only."""
    gate = Gate()

    def slow_upload(deps: RunDeps) -> RunDeps:
        stored = deps.policies.upload

        async def upload(state: SessionState, directory: Path) -> PublishedPolicy:
            if state.last_step is not None:
                await gate.passed()
            return await stored(state, directory)

        vars(deps.policies)["upload"] = upload
        return deps

    world.stream.append(submission(steps=3, checkpoint_every_steps=1))
    groups = await Evaluation(world).all_offered(range(2))
    async with Trainer(world, change=slow_upload):
        await asyncio.wait_for(gate.reached.wait(), 60)  # durable and confirmed, and on its way to the store
        world.stream.append(cancelled(is_final=True))
        for group_id in groups[-by_the_planner:]:
            released(world, group_id)
        world.stream.append(taskset_events.RunFinished(run_id=RUN, model=MODEL))
        gate.open.set()
        await until_closed(world)
    said = [one.outcome for one in world.recorder.of(events.GroupSettled)]
    assert said == ["released"] * by_the_planner
    assert not world.recorder.of(events.StepCompleted)
    assert not world.recorder.of(events.PolicyPublished)
    assert not world.recorder.of(events.CheckpointSaved)
