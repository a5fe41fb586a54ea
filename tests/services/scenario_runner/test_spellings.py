"""A default argument that is written out makes no other task: held out stays so, however it is written."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.support import refusal, register

from scenario_runner.domain.spellings import other_spellings
from upcycle.api.common.v1.common_pb2 import SPLIT_HELD_OUT, SPLIT_TRAIN, SPLIT_UNASSIGNED
from upcycle.api.taskset.v1 import service_pb2, taskset_pb2
from upcycle.task_rows import task_digest

_ENVIRONMENT = '''
from upcycle import Environment

env = Environment("quiz", version="1.0.0")

@env.scenario("ask")
async def ask(kind: str, level: int = 0, strict: bool = False):
    """Ask."""
    yield [{"role": "user", "content": f"{kind}-{level}-{strict}?"}]
    yield 1.0
'''
_SPELLINGS: tuple[dict[str, Any], ...] = (
    {"kind": "a"},
    {"kind": "a", "level": 0},
    {"kind": "a", "strict": False},
    {"kind": "a", "strict": False, "level": 0.0},
)


def quiz(folder: Path, name: str, split: Any, *arguments: dict[str, Any]) -> taskset_pb2.Taskset:
    path = folder / "quiz.py"
    path.write_text(_ENVIRONMENT)
    tasks = [
        taskset_pb2.Task(slug=f"t{at}", scenario="ask", args_json=json.dumps(one))
        for at, one in enumerate(arguments)
    ]
    environment = taskset_pb2.EnvironmentSpec(name="quiz", python=taskset_pb2.PythonSource(path=str(path)))
    return taskset_pb2.Taskset(name=name, split=split, environment=environment, tasks=tasks)


@pytest.mark.parametrize(("first", "second"), [(SPLIT_HELD_OUT, SPLIT_TRAIN), (SPLIT_TRAIN, SPLIT_HELD_OUT)])
async def test_a_task_is_on_one_side_however_it_is_written(
    runner: Runner, tmp_path: Path, first: Any, second: Any
) -> None:
    for number, (mine, other) in enumerate(product(_SPELLINGS, repeat=2)):
        one, two = ({**spelling, "kind": f"k{number}"} for spelling in (mine, other))
        assert (await register(runner, quiz(tmp_path, f"one{number}", first, one))).created
        fresh = {"kind": f"fresh{number}"}
        error = await refusal(register(runner, quiz(tmp_path, f"two{number}", second, fresh, two)))
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        details = error.details() or ""
        assert f"task 't1' of taskset 'two{number}'" in details
        assert f"taskset one{number} claimed it" in details
    # What differs in more than a default is another task.
    others = [{"kind": "k0", "level": 1}, {"kind": "k0", "strict": True}]
    assert (await register(runner, quiz(tmp_path, "others", second, *others))).created


async def test_a_gradient_is_refused_for_each_spelling_of_a_held_out_task(
    runner: Runner, tmp_path: Path
) -> None:
    """At the doors of SFT and of interactive training, which name tasks by digest."""
    await register(runner, quiz(tmp_path, "judge", SPLIT_HELD_OUT, _SPELLINGS[1]))
    # Also of a taskset on no side, whose trajectories have the digest of its spelling.
    await register(runner, quiz(tmp_path, "loose", SPLIT_UNASSIGNED, *_SPELLINGS))
    stored = (await runner.tasksets.GetTaskset(service_pb2.GetTasksetRequest(name="loose"))).taskset
    assert len({task.digest for task in stored.tasks}) == 4
    for task in stored.tasks:
        request = service_pb2.ClaimTasksRequest(task_digests=[task.digest], claimed_by="a test")
        error = await refusal(runner.tasksets.ClaimTasks(request))
        assert f"task {task.digest[:12]}… is held out: taskset judge claimed it" in (error.details() or "")


async def test_what_trained_in_one_spelling_is_never_held_out_in_another(
    runner: Runner, tmp_path: Path
) -> None:
    trained = task_digest("quiz", "ask", json.dumps(_SPELLINGS[2]))
    request = service_pb2.ClaimTasksRequest(task_digests=[trained], claimed_by="a test")
    assert (await runner.tasksets.ClaimTasks(request)).claimed == 1
    error = await refusal(register(runner, quiz(tmp_path, "judge", SPLIT_HELD_OUT, _SPELLINGS[0])))
    assert "its defaults written otherwise, is training data already: gradient of a test" in (
        error.details() or ""
    )


def spellings(given: str, **defaults: Any) -> set[str]:
    properties = {name: {"default": value} for name, value in defaults.items()}
    return other_spellings("e", "s", given, {"properties": {"x": {"type": "integer"}, **properties}})


def test_a_value_is_a_default_as_json_has_it() -> None:
    assert spellings('{"x":1}') == set()
    assert spellings('{"x":1}', n=0) == {task_digest("e", "s", '{"x":1,"n":0}')}
    assert spellings('{"x":1,"n":0.0}', n=0) == {task_digest("e", "s", '{"x":1}')}
    assert spellings('{"n":false}', n=0) == set()  # equal in Python, another value in JSON
    assert spellings('{"n":null}', n=None) == {task_digest("e", "s", "{}")}
    assert spellings("{}", n=[{"b": 1, "a": 2}]) == {task_digest("e", "s", '{"n":[{"a":2,"b":1}]}')}


def test_of_many_defaults_all_written_out_and_all_left_out_are_spellings() -> None:
    four = dict.fromkeys("abcd", 0)
    everything, nothing = (task_digest("e", "s", one) for one in (json.dumps(four), "{}"))
    assert spellings("{}", **four) == {everything}
    assert spellings('{"a":0}', **four) == {everything, nothing}
    assert len(spellings("{}", a=0, b=0, c=0)) == 7


@pytest.mark.parametrize("properties", [None, [], {"n": True}, {"n": {"default": float("nan")}}])
def test_a_served_schema_without_usable_defaults_makes_no_spelling(properties: Any) -> None:
    assert other_spellings("e", "s", '{"x":1}', {"properties": properties}) == set()
