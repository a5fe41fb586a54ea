"""Runs on several tasksets at the running planner: what is refused at submit, and what they refer to."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.fleets import ENVIRONMENTS
from tests.services.scenario_runner.support import (
    arith,
    explain,
    get,
    refusal,
    register,
    run_spec,
    submit,
    until,
)
from tests.services.scenario_runner.test_guided_episodes import GUIDED

from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import service_pb2, taskset_pb2

TRAIN = common_pb2.PURPOSE_TRAIN


def mixed(*mix: str, **fields: Any) -> taskset_pb2.RunSpec:
    return run_spec(**{"purpose": TRAIN, "taskset": "sums", "mix": mix, **fields})


async def places(runner: Runner, scenario: str = "find") -> None:
    """A taskset of another environment."""
    source = taskset_pb2.PythonSource(path=GUIDED.path)
    tasks = [taskset_pb2.Task(slug="t0", scenario=scenario, args_json='{"place": "x"}')]
    if scenario != "find":
        tasks[0].args_json = "{}"
    await register(
        runner,
        taskset_pb2.Taskset(
            name="places",
            split=common_pb2.SPLIT_TRAIN,
            environment=taskset_pb2.EnvironmentSpec(name=GUIDED.name, python=source),
            tasks=tasks,
        ),
    )


async def test_a_run_on_two_environments_is_taken_and_says_what_it_plays(runner: Runner) -> None:
    await register(runner, arith())
    await places(runner)
    run = await submit(runner, mixed("places:share=0.25"))
    assert list(run.spec.mix) == ["places:share=0.25"]
    own, other = run.mix
    assert [(one.taskset, one.share) for one in run.mix] == [("sums", 0.75), ("places", 0.25)]
    assert own.source_digest == run.source_digest != other.source_digest
    await until(runner, run.run_id, lambda counts: counts.requested >= 16)
    results = (await get(runner, run.run_id)).results
    assert {row.taskset for row in results} == {"sums", "places"}
    again = await submit(runner, mixed("places:share=0.25"))
    assert again.run_id == run.run_id


@pytest.mark.parametrize(
    ("mix", "code", "says"),
    [
        (["nowhere:share=0.5"], "NOT_FOUND", "nowhere"),
        (["held:share=0.5"], "FAILED_PRECONDITION", "taskset 'held' is held out: it never trains"),
        (["audits:share=0.5"], "FAILED_PRECONDITION", "taskset 'audits' is for audits"),
        (["loose:share=0.5"], "FAILED_PRECONDITION", "taskset 'loose' is unassigned"),
        (["sums@1:share=0.5"], "INVALID_ARGUMENT", "names 'sums', which is spec.taskset"),
        (["more:share=1"], "INVALID_ARGUMENT", "spec.mix: the shares add up to 1, which leaves nothing"),
    ],
)
async def test_a_taskset_that_does_not_train_or_is_none_is_refused(
    runner: Runner, mix: list[str], code: str, says: str
) -> None:
    await register(runner, arith())
    await register(runner, arith(2, "more", first=10))
    await register(runner, arith(2, "held", common_pb2.SPLIT_HELD_OUT, first=100))
    await register(runner, arith(2, "audits", common_pb2.SPLIT_AUDIT, first=200))
    await register(runner, arith(2, "loose", common_pb2.SPLIT_UNASSIGNED, first=300))
    error = await refusal(submit(runner, mixed(*mix)))
    assert error.code().name == code
    assert says in (error.details() or "")
    assert not (await runner.tasksets.ListRuns(service_pb2.ListRunsRequest())).runs


async def test_an_evaluation_has_no_mix(runner: Runner) -> None:
    await register(runner, arith())
    await places(runner)
    error = await refusal(submit(runner, mixed("places:share=0.5", purpose=common_pb2.PURPOSE_EVAL)))
    assert "spec.mix is for purpose TRAIN only; this run has purpose EVAL" in (error.details() or "")


@pytest.mark.parametrize("how", ["gone", "broken"])
async def test_an_environment_that_no_fleet_can_open_is_refused_with_its_taskset(
    runner: Runner, tmp_path: Path, how: str
) -> None:
    """Also where its files are read without a fault: it is loaded."""
    await register(runner, arith())
    path = tmp_path / "mine" / "other.py"
    path.parent.mkdir()
    shutil.copy(ENVIRONMENTS / "arith.py", path)
    other = arith(2, "other", first=50)
    other.environment.python.path = str(path)
    await register(runner, other)
    if how == "gone":
        path.unlink()
    else:
        path.write_text(path.read_text() + "\nraise RuntimeError('the data base is away')\n")
    error = await refusal(submit(runner, mixed("other:share=0.5")))
    assert error.code().name == "INVALID_ARGUMENT"
    assert "environment of taskset 'other' cannot be read" in (error.details() or "")
    assert not (await runner.tasksets.ListRuns(service_pb2.ListRunsRequest())).runs


async def test_guidance_is_asked_of_every_environment(runner: Runner) -> None:
    await places(runner, "bare")
    await register(runner, arith())
    training = taskset_pb2.TrainingConfig(guidance="on_failure")
    error = await refusal(submit(runner, mixed("sums:share=0.5", taskset="places", training=training)))
    assert "the scenario 'bare' declares none" in (error.details() or "")
    error = await refusal(submit(runner, mixed("places:share=0.5", training=training)))
    assert "declares none" in (error.details() or "")


async def test_a_taskset_that_a_run_mixes_in_is_not_deleted(runner: Runner) -> None:
    await register(runner, arith())
    await places(runner)
    run = await submit(runner, mixed("places:share=0.25"))
    error = await refusal(runner.tasksets.DeleteTaskset(service_pb2.DeleteTasksetRequest(name="places")))
    assert f"is referred to by run {run.run_id}" in (error.details() or "")


async def test_why_says_nothing_of_a_mix_that_just_began(runner: Runner) -> None:
    await register(runner, arith())
    await places(runner)
    run = await submit(runner, mixed("places:share=0.25"))
    said = await explain(runner, run.run_id)
    assert not [one for one in said.waiting_for if "of the mix" in one.what]
