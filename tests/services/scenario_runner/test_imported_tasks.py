"""Tasks of others on a running service: rows of a data set and Harbor directories.

They are registered, planned, played in the fleet's isolation and graded, a right answer and a wrong one.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.libs.upcycle.importers.test_harbor import HARBOR, written
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.support import announce_graded, finished, run_spec, sampling, submit

from upcycle.api.environment.v1 import service_pb2 as env_pb2
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.environment import load_environment
from upcycle.platform import PEERS, Addresses, Platform
from upcycle.run_client import register_taskset
from upcycle.scenario import Reference
from upcycle.tasks import Taskset

CAPITALS = """
from upcycle import Environment

env = Environment("capitals")

@env.scenario()
async def capital(country: str, city: str):
    answer = yield f"What is the capital of {country}?"
    yield float(answer == city)

@capital.gold
def solved(country: str, city: str) -> str:
    return city
"""
ROWS = [
    {"id": "a", "land": "France", "seat": "Paris", "part": "west"},
    {"id": "b", "land": "Latvia", "seat": "Riga", "part": "east"},
]


def capitals(folder: Path) -> Taskset:
    """Two rows of a data set, whose columns have other names than the scenario's arguments."""
    path = folder / "capitals.py"
    path.write_text(CAPITALS)
    return Taskset.from_dataset(
        ROWS,
        "capitals-imported",
        scenario=load_environment(path).scenarios["capital"],
        arguments={"country": "land", "city": "seat"},
        ids="id",
        families="part",
    )


def harbor(folder: Path) -> Taskset:
    """One directory, whose tests decide."""
    written(folder / "tasks" / "sort-names")
    (folder / "harbor.py").write_text(HARBOR)
    return Taskset.from_file(folder / "harbor.py")


async def played(runner: Runner, request: Any, reference: Reference) -> float:
    """As sampler and grader do: the first attempt does what solves the task, the second gives up."""
    is_first = request.episode.member == 0
    opened = await runner.environments.Open(env_pb2.OpenRequest(episode_id=request.episode.episode_id))
    turns = []
    for number, (name, arguments) in enumerate(reference.calls if is_first else ()):
        call = trajectory_pb2.ToolCall(call_id=f"c{number}", name=name, arguments_json=json.dumps(arguments))
        called = await runner.environments.CallTool(
            env_pb2.CallToolRequest(
                lease_id=opened.lease_id, call_id=call.call_id, name=name, arguments_json=call.arguments_json
            )
        )
        assert not called.is_error, called.content
        result = trajectory_pb2.ToolResult(call_id=call.call_id, content=called.content)
        turns.append(trajectory_pb2.Turn(tool_calls=[call], tool_results=[result]))
    answer = reference.answer if is_first else "no idea"
    turns.append(trajectory_pb2.Turn(text=answer))
    body = trajectory_pb2.TrajectoryBody(episode=request.episode, answer=answer, turns=turns)
    grade = await runner.environments.Grade(
        env_pb2.GradeRequest(lease_id=opened.lease_id, body=await runner.store(body))
    )
    await announce_graded(runner, request, grade.reward, grade.success)
    return float(grade.reward)


@pytest.mark.parametrize(
    ("made", "wrong"), [(capitals, 0.0), (harbor, 0.25)], ids=["rows of a data set", "Harbor directories"]
)
async def test_imported_tasks_are_played_and_graded_by_a_run(
    runner: Runner, tmp_path: Path, made: Callable[[Path], Taskset], wrong: float
) -> None:
    taskset = made(tmp_path)
    environment = load_environment(taskset.environment.path)
    golds = {
        task.slug: environment.scenarios[task.scenario].reference(task.args) or Reference("")
        for task in taskset
    }
    addresses = Addresses(dict.fromkeys(PEERS, runner.address), "test")
    async with Platform(addresses) as platform:
        registered = await register_taskset(platform, taskset)
    run = await submit(runner, run_spec(taskset=registered.exact_name))

    async def play(request: Any) -> None:
        await played(runner, request, golds[request.episode.task_slug])

    async with sampling(runner, play):
        done = await finished(runner, run.run_id)
    assert done.run.state == taskset_pb2.RUN_STATE_COMPLETED
    rewards = sorted((row.task_slug, row.reward) for row in done.results)
    assert rewards == sorted((task.slug, reward) for task in taskset for reward in (wrong, 1.0))
    assert {row.task_slug: row.failure_kind for row in done.results} == {task.slug: "" for task in taskset}
