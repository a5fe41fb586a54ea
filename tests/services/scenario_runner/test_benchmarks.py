"""The benchmarks that ship are played in the sandbox of an episode: with its limits, in a forked process."""

import json
from typing import Any

import pytest
from tests.services.scenario_runner.fleets import Fleet

from scenario_runner.domain.environments import PythonEnvironment, TaskOrder
from upcycle.api.trajectory.v1.trajectory_pb2 import ToolCall, ToolResult, Turn
from upcycle.benchmarks.autonomy_10.env import drawn as drawn_work
from upcycle.benchmarks.repair_30.drawing import drawn as drawn_repository
from upcycle.benchmarks.repair_30.planting import library_of
from upcycle.benchmarks.repair_30.players import writes
from upcycle.benchmarks.sheet_50.env import drawn as drawn_workbook
from upcycle.benchmarks.sheet_50.problems import problem_of
from upcycle.benchmarks.sheet_50.reference import reference_calls
from upcycle.shipped import BENCHMARKS


def source_of(name: str) -> PythonEnvironment:
    return PythonEnvironment(name, str(BENCHMARKS[name].tasks_file.with_name("env.py").resolve()))


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("sheet-50", reference_calls(problem_of(*drawn_workbook(12)))),
        ("repair-30", writes(drawn_repository("held_out", 12).repaired())),
        ("autonomy-10", drawn_work(12).calls()),
    ],
)
async def test_a_reference_earns_1_in_the_sandbox(fleet: Fleet, name: str, calls: Any) -> None:
    opened = await fleet.open(BENCHMARKS[name].scenario, '{"number":12}', source=source_of(name))
    for tool, arguments in calls:
        result = await fleet.call(opened, tool, json.dumps(arguments), limit_s=60)
        assert not result.is_error, result
    assert (await fleet.grade(opened)).reward == 1.0


async def test_a_planted_defect_is_read_in_a_process_of_its_own_and_mended_in_the_sandbox(
    fleet: Fleet,
) -> None:
    source, known = source_of("repair-30"), library_of(1).defects[0]
    path = f"{library_of(1).name}/{known.file}"
    edit = {"path": path, "old": known.right, "new": known.wrong}
    opened = await fleet.open("plant", '{"seed":1}', source=source)
    assert not (await fleet.call(opened, "replace_text", json.dumps(edit), limit_s=60)).is_error
    called = ToolCall(call_id="1", name="replace_text", arguments_json=json.dumps(edit))
    turn = Turn(tool_calls=[called], tool_results=[ToolResult(call_id="1", content="written")])
    assert (await fleet.grade(opened, "planted", turn)).reward == 1.0

    used = {"name": "replace_text", "arguments": edit, "result": "written"}
    answered = {"answer": "planted", "trajectory": {"turns": [{"text": "", "tool_calls": [used]}]}}
    order = TaskOrder(source, "mend", 1, '{"seed":1}', solved=True, proposal=answered)
    made = (await fleet.hosts.generate(order)).arguments
    assert list(made["modules"]) == [path]
    solving = await fleet.open("mend", json.dumps(made), source=source)
    back = {"path": path, "old": known.wrong, "new": known.right}
    assert not (await fleet.call(solving, "replace_text", json.dumps(back), limit_s=60)).is_error
    assert (await fleet.grade(solving)).reward == 1.0
