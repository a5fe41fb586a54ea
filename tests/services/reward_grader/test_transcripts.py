"""What an extra grader and a person's Python read of a stored trajectory: reasoning apart, and the states."""

from reward_grader.wire import transcript_from_body
from scenario_runner.wire.environments import transcript_from_body as scenario_transcript
from upcycle.api.trajectory.v1.trajectory_pb2 import StateSnapshot, ToolCall, ToolResult, TrajectoryBody, Turn
from upcycle.evaluation import transcript_of
from upcycle.transcripts import Answer, Transcript

BODY = TrajectoryBody(
    answer="OOM",
    turns=[
        Turn(
            reasoning="Is it the pool?",
            tool_calls=[ToolCall(call_id="c1", name="look", arguments_json="{}")],
            tool_results=[ToolResult(call_id="c1", content="seen", state=StateSnapshot(note="left out"))],
        ),
        Turn(text="OOM"),
    ],
    first_state=StateSnapshot(value_json='{"looks":0}'),
    last_state=StateSnapshot(patch_json='[{"op":"replace","path":"/looks","value":1}]'),
)
STATES = ({"looks": 0}, None, {"looks": 1})


def test_graders_read_states_and_reasoning_beside_the_answer() -> None:
    answer = transcript_from_body(BODY).as_answer()
    assert answer == "OOM"
    assert answer.trajectory.states == STATES
    assert [(turn.text, turn.reasoning) for turn in answer.trajectory.turns] == [
        ("", "Is it the pool?"),
        ("OOM", ""),
    ]
    assert transcript_of(BODY) == answer.trajectory


def test_a_scenario_gets_the_reasoning_of_each_turn() -> None:
    row = scenario_transcript(BODY).trajectory
    read = Answer("OOM", Transcript.from_json(row)).trajectory
    assert [turn.reasoning for turn in read.turns] == ["Is it the pool?", ""]
    assert read.to_json() == row
    assert row["turns"][1] == {"text": "OOM", "tool_calls": []}


def test_a_trajectory_without_states_has_none() -> None:
    assert transcript_of(TrajectoryBody(turns=[Turn(text="OOM")])).states == ()
