"""What a scenario says that each turn earns goes with its grade, or the grade is refused by name."""

from pathlib import Path

import pytest
from tests.services.scenario_runner.fleets import Fleet

from scenario_runner.domain.environments import EnvironmentBroken, PythonEnvironment
from scenario_runner.wire.environments import grade_to_wire
from upcycle.api.trajectory.v1.trajectory_pb2 import ToolCall, ToolResult, Turn

SOURCE = """
from upcycle import Environment, Rubric
from upcycle.graders import exact_match, turn_rewards

env = Environment("steps")

@env.scenario()
async def steps(short: bool = False):
    answer = yield "?"
    task = exact_match("done")
    if short:
        yield {"score": 1.0, "info": {"turn_rewards": [1.0, 1.0, 1.0]}}
    else:
        yield Rubric([task, turn_rewards(lambda turn: bool(turn.tool_calls), task=task)])(answer)
"""
CALLED = Turn(
    tool_calls=[ToolCall(call_id="c", name="look", arguments_json="{}")],
    tool_results=[ToolResult(call_id="c", content="seen")],
)


@pytest.fixture
def steps(tmp_path: Path) -> PythonEnvironment:
    path = tmp_path / "steps.py"
    path.write_text(SOURCE)
    return PythonEnvironment("steps", str(path))


@pytest.mark.parametrize(("answer", "earned", "reward"), [("done", [1.0, 0.0], 0.75), ("no", [0.0, 0.0], 0)])
async def test_each_turn_has_what_it_earns(
    fleet: Fleet, steps: PythonEnvironment, answer: str, earned: list[float], reward: float
) -> None:
    opened = await fleet.open("steps", source=steps)
    grade = await fleet.grade(opened, answer, CALLED, Turn(text=answer))
    sent = grade_to_wire(grade)
    assert (list(sent.turn_rewards), sent.reward) == (earned, reward)


async def test_a_list_of_another_length_is_no_reward(fleet: Fleet, steps: PythonEnvironment) -> None:
    opened = await fleet.open("steps", '{"short": true}', source=steps)
    with pytest.raises(EnvironmentBroken) as caught:  # of any answer: so it is the author's error
        await fleet.grade(opened, "done", CALLED, Turn(text="done"))
    assert "turn_rewards has 3 numbers, the episode 2 turns: give one for each" in str(caught.value)
