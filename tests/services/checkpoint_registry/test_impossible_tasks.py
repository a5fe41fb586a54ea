"""Tasks without a solution are played in a gate's runs, and neither help a version nor hurt it."""

import pytest
from tests.services.checkpoint_registry.running_registry import TRAPS, Stack, policy, upload

from checkpoint_registry.wire import runs as wire
from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1 import events_pb2
from upcycle.api.taskset.v1 import service_pb2 as taskset_service_pb2
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY


async def test_a_better_candidate_that_fools_no_grader_is_promoted_over_a_head_that_does(
    stack: Stack,
) -> None:
    # Were they counted, their family would be lost by 100 points.
    stack.planner.impossible = {0: True, 1: False}
    async with stack.registry() as stub:
        await upload(stub, "honest", policy())
        await stack.save("honest", 1)
        assert (await stack.fact(events_pb2.CheckpointPromoted, "honest")).version == 1
    report = (await stack.fact(events_pb2.CheckpointEvaluated, "honest")).report
    assert {family.family for family in report.families} == {f"family-{at}" for at in range(4)}
    assert report.candidate_rate == pytest.approx(0.9, abs=0.03)
    assert report.head_rate == pytest.approx(0.3, abs=0.03)


async def test_a_candidate_that_only_fools_graders_better_than_head_gains_nothing(stack: Stack) -> None:
    stack.planner.rates = {0: 0.3, 1: 0.3}
    stack.planner.impossible = {0: False, 1: True}
    async with stack.registry() as stub:
        await upload(stub, "cheat", policy())
        await stack.save("cheat", 1)
        held = await stack.fact(events_pb2.CheckpointHeld, "cheat")
    assert held.version == 1
    report = (await stack.fact(events_pb2.CheckpointEvaluated, "cheat")).report
    assert report.candidate_rate < 0.35  # .3 of 40 tasks; .55 of 60, were they counted
    # They were played all the same: a run of all families has theirs.
    assert {tuple(run.spec.families) for run in stack.planner.runs.values()} == {()}


def test_a_gates_taskset_is_its_tasks_that_can_be_solved() -> None:
    families = ["", "disk", *[IMPOSSIBLE_FAMILY] * TRAPS]
    tasks = [taskset_pb2.Task(slug=f"t{at}", family=family) for at, family in enumerate(families)]
    message = taskset_pb2.Taskset(name="held", split=common_pb2.SPLIT_HELD_OUT, tasks=tasks)
    read = wire.taskset_from_wire(message)
    assert (read.families, read.num_tasks) == ({"t0": "default", "t1": "disk"}, 2)


def test_of_a_run_they_are_traps_and_no_results() -> None:
    result = taskset_pb2.EpisodeResult(task_slug="x", family=IMPOSSIBLE_FAMILY, success=True)
    real = taskset_pb2.EpisodeResult(task_slug="t", family="disk")
    read = wire.run_from_wire(taskset_service_pb2.GetRunResponse(results=[result, real]))
    assert [(one.task_slug, one.success) for one in read.traps] == [("x", True)]
    assert [one.task_slug for one in read.results] == ["t"]
