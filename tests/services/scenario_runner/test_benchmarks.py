"""The benchmarks that ship are played in the sandbox of an episode: with its limits, in a forked process."""

import json
from typing import Any

import pytest
from tests.services.scenario_runner.fleets import Fleet

from scenario_runner.domain.environments import PythonEnvironment
from upcycle.benchmarks.autonomy_10.env import drawn as drawn_work
from upcycle.benchmarks.repair_30.drawing import drawn as drawn_repository
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
