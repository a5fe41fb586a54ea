"""A tool's own limit in the fleet: it travels with the tool's description, and each call keeps it."""

import shutil
from pathlib import Path

import pytest
from tests.libs.upcycle import slow_tools
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.fleets import Fleet
from tests.services.scenario_runner.support import refusal, register, run_spec, submit

from scenario_runner.domain.environments import PythonEnvironment
from scenario_runner.wire.environments import opened_to_wire
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import service_pb2, taskset_pb2

SLOW_TOOLS = PythonEnvironment("slow-tools", str(Path(slow_tools.__file__)))


async def test_a_call_may_take_as_long_as_its_tool_says(fleet: Fleet) -> None:
    with fleet.hasty(tool_s=0.5):
        opened = await fleet.open("job", source=SLOW_TOOLS)
        built = await fleet.call(opened, "build", '{"seconds": 1.6}')  # 0.5 s, and 1 s more for a wedged one
        assert (built.content, built.is_error) == ("built", False)
        waited = await fleet.call(opened, "wait", '{"seconds": 30}')
        assert (waited.content, waited.is_error) == ("wait: no result within 0.5 s", True)
        peeked = await fleet.call(opened, "peek", '{"seconds": 30}')
        assert (peeked.content, peeked.is_error) == ("peek: no result within 0.2 s", True)
    assert (await fleet.grade(opened, "built")).reward == 1.0


async def test_the_limit_is_sent_to_the_sampler(fleet: Fleet) -> None:
    opened = opened_to_wire(await fleet.open("job", source=SLOW_TOOLS), "127.0.0.1:1")
    assert [tool.timeout_s for tool in opened.tools if tool.HasField("timeout_s")] == [3600.0, 0.2]
    assert [tool.name for tool in opened.tools if not tool.HasField("timeout_s")] == ["wait"]


@pytest.mark.parametrize("purpose", [common_pb2.PURPOSE_EVAL, common_pb2.PURPOSE_TRAIN])
async def test_a_run_whose_episodes_are_shorter_than_a_tool_is_refused_at_submit(
    runner: Runner, tmp_path: Path, purpose: common_pb2.Purpose.ValueType
) -> None:
    path = shutil.copy(SLOW_TOOLS.path, tmp_path)
    source = taskset_pb2.PythonSource(path=str(path))
    environment = taskset_pb2.EnvironmentSpec(name=SLOW_TOOLS.name, python=source)
    job = taskset_pb2.Task(slug="job", scenario="job", args_json="{}")
    split = common_pb2.SPLIT_TRAIN
    await register(
        runner, taskset_pb2.Taskset(name="jobs", split=split, environment=environment, tasks=[job])
    )
    error = await refusal(submit(runner, run_spec(purpose, taskset="jobs", episode_deadline_s=3599)))
    assert error.code().name == "INVALID_ARGUMENT"
    said = error.details() or ""
    assert "tool 'build' of environment 'slow-tools' may take 3600 s (its timeout_s)" in said
    assert "ends after 3599 s: set spec.episode_deadline_s to 3660 or so" in said
    assert not (await runner.tasksets.ListRuns(service_pb2.ListRunsRequest())).runs
    taken = await submit(runner, run_spec(purpose, taskset="jobs", episode_deadline_s=3600))
    assert taken.spec.episode_deadline_s == 3600
