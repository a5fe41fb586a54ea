"""The black-box agent plays an incident with its own tools; its evaluation is held against the harness's."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from benchmarks.black_box import (
    HARNESS,
    OPENAI,
    PLATFORM,
    PROGRAM,
    Outcome,
    figures_of,
    job_of,
    noise,
    outcome_of,
)
from benchmarks.black_box_agent import MAX_TURNS, TOOLS, answered, called
from benchmarks.black_box_tasks import COUNT
from benchmarks.stacks import BenchmarkFailed
from examples.incident.env import env
from examples.incident.world import World, draw_incident


@pytest.fixture
def world() -> Iterator[World]:
    made = World(draw_incident("train", 0))
    yield made
    made.close()


def says(content: str, *calls: tuple[str, str], finish: str = "stop") -> dict[str, Any]:
    rows = [
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(calls)
    ]
    return {"finish_reason": finish, "message": {"content": content, "tool_calls": rows}}


def conversation(world: World, *choices: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """The agent's answer, and the messages of its last request."""
    asked: list[list[dict[str, Any]]] = []
    left = iter(choices)

    def ask(body: dict[str, Any]) -> Mapping[str, Any]:
        asked.append(list(body["messages"]))
        return next(left)

    return answered("what broke?", world, [], ask), asked[-1]


def test_each_prompt_leads_to_one_incident_and_the_tools_are_those_of_the_environment() -> None:
    job = job_of()
    assert len(job["incidents"]) == COUNT
    for prompt, (split, seed) in job["incidents"].items():
        assert prompt.startswith(f"Alert: {draw_incident(split, seed).alerting} is failing")
    assert tuple(tool["function"]["name"] for tool in job["tools"]) == TOOLS == tuple(env.tools)


def test_the_agent_reads_what_its_tools_say_and_answers(world: World) -> None:
    service = world.incident.faulty
    call = ("search_logs", json.dumps({"service": service}))
    answer, messages = conversation(world, says("", ("list_issues", "{}"), call), says("it was me"))
    assert answer == "it was me"
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert [message["tool_call_id"] for message in messages[2:]] == ["c0", "c1"]
    assert "service started" in messages[3]["content"]
    assert world.num_calls == 2


@pytest.mark.parametrize(
    "choices", [[says("half an ans", finish="length")], [says("", ("list_issues", "{}"))] * MAX_TURNS]
)
def test_an_agent_whose_budget_is_spent_answers_nothing(world: World, choices: list[dict[str, Any]]) -> None:
    assert conversation(world, *choices)[0] == ""


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("close", "{}", "no tool 'close'"),
        ("search_logs", '{"service": 3}', "arguments are texts"),
        ("search_logs", "{}", "missing 1 required"),
        ("search_logs", "[]", "has no attribute"),
        ("search_logs", "{", "search_logs: "),
    ],
)
def test_the_model_reads_why_a_call_is_wrong(world: World, name: str, arguments: str, said: str) -> None:
    assert said in called(world, {"name": name, "arguments": arguments})


def done(graded: int = 4) -> dict[str, Any]:
    return {
        "coverage": {"num_graded": graded, "num_planned": 4},
        "report": {"overall": {"success": {"value": 0.25}}, "mean_turns": 1.0},
        "evaluation": {"duration_s": 2.0},
    }


def test_turns_of_a_program_are_its_calls() -> None:
    assert outcome_of(HARNESS, done()) == Outcome(2.0, 0.25, 1.0, 4)
    assert outcome_of(PROGRAM, done(), 5.5) == Outcome(2.0, 0.25, 5.5, 4)
    with pytest.raises(BenchmarkFailed, match="the agent: 3 of 4 episodes were graded"):
        outcome_of(PROGRAM, done(3))


def test_seconds_are_compared_turn_by_turn_and_success_within_its_noise() -> None:
    outcomes = {
        HARNESS: [Outcome(10.0, 0.25, 5.0, 96), Outcome(20.0, 0.25, 5.0, 96)],
        PROGRAM: [Outcome(11.0, 0.26, 5.0, 96), Outcome(23.0, 0.25, 5.1, 96)],
        OPENAI: [Outcome(30.0, 0.25, 5.0, 96), Outcome(60.0, 0.25, 5.0, 96)],
        PLATFORM: [Outcome(5.0, 0.25, 5.0, 96), Outcome(10.0, 0.25, 5.0, 96)],
    }
    seconds, success, openai, platform = figures_of(outcomes)
    assert seconds.peer is not None
    assert seconds.peer.ratio == pytest.approx(1.125)
    assert (seconds.met, success.met, openai.met, platform.met) == (True, True, None, None)
    assert "the agent: success 25.5%, 5.05 turns; the harness: success 25.0%, 5 turns" in seconds.note
    outcomes[PROGRAM] = [Outcome(12.0, 0.5, 5.0, 96), Outcome(24.0, 0.5, 5.0, 96)]
    assert [figure.met for figure in figures_of(outcomes)[:2]] == [False, False]


def test_noise_falls_with_the_root_of_the_episodes_and_is_never_none() -> None:
    few, many = (Outcome(1.0, 0.2, 5.0, count) for count in (100, 400))
    assert noise(few, few) == pytest.approx(2 * noise(many, many))
    assert noise(Outcome(1.0, 0.0, 5.0, 96), Outcome(1.0, 0.0, 5.0, 96)) > 0
