"""The two-yield protocol: what a scenario receives, what its reward becomes, every way to break it."""

import math
from collections.abc import AsyncGenerator, Callable, Generator
from decimal import Decimal
from typing import Any

import pytest

from upcycle import Answer, Environment, EvaluationResult, SubScore
from upcycle.errors import ArgumentsInvalid, RewardInvalid, ScenarioError
from upcycle.rewards import evaluation_result
from upcycle.scenario import ScenarioPlay
from upcycle.transcripts import Transcript


def play(function: Callable[..., Any], **arguments: Any) -> ScenarioPlay:
    return Environment("test").scenario("s")(function).play(arguments)


def nested(levels: int) -> dict[str, Any]:
    row: dict[str, Any] = {"name": "leaf", "value": 1.0}
    for level in range(levels - 1):
        row = {"name": f"level {level}", "value": 1.0, "children": [row]}
    return row


async def ending_in(reward: Any) -> EvaluationResult:
    async def scenario() -> AsyncGenerator[Any, Any]:
        yield "prompt"
        yield reward

    started = play(scenario)
    await started.start()
    return await started.grade(Answer("x"))


async def test_the_scenario_receives_the_answer_and_the_trajectory() -> None:
    seen: list[Answer] = []
    closed: list[bool] = []

    async def scenario(query: str, expected: str | None = None) -> AsyncGenerator[Any, Any]:
        answer = yield f"You are a specialist. Investigate: {query}"
        seen.append(answer)
        yield 1.0 if expected and expected in answer else 0.0
        closed.append(True)

    started = play(scenario, query="500s", expected="pool")
    assert await started.start() == "You are a specialist. Investigate: 500s"
    row = {"turns": [{"text": "hm", "tool_calls": [{"name": "t", "arguments": {"a": 1}, "result": "r"}]}]}
    result = await started.grade(Answer("the pool is exhausted", Transcript.from_json(row)))
    assert result == EvaluationResult(1.0)
    assert closed == [True]
    assert isinstance(seen[0], str)
    assert seen[0].trajectory.tool_calls[0].result == "r"
    assert seen[0].trajectory.to_json()["turns"][0]["tool_calls"][0]["is_error"] is False


async def test_a_plain_generator_is_a_scenario_too() -> None:
    def scenario() -> Generator[Any, Any, None]:
        trajectory = yield [{"role": "user", "content": "go"}]
        yield float(len(trajectory.trajectory.turns) == 0)

    started = play(scenario)
    assert await started.start() == [{"role": "user", "content": "go"}]
    assert (await started.grade(Answer({"label": "a"}))).score == 1.0


async def test_an_answer_that_is_not_text_is_its_json() -> None:
    answer = Answer({"service": "db"})
    assert (answer, answer.value) == ('{"service": "db"}', {"service": "db"})


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (1, EvaluationResult(1.0, success=True)),
        (True, EvaluationResult(1.0, success=True)),
        (0.25, EvaluationResult(0.25, success=False)),
        (1 - 1e-9, EvaluationResult(1 - 1e-9, success=True)),
        ({"score": 0.6, "success": True}, EvaluationResult(0.6, success=True)),
        (
            {
                "score": 0.5,
                "subscores": [{"name": "a", "value": 1, "weight": 2, "children": []}],
                "info": {"k": 1},
            },
            EvaluationResult(0.5, False, (SubScore("a", 1.0, 2),), {"k": 1}),
        ),
        (EvaluationResult(0.3), EvaluationResult(0.3)),
    ],
)
async def test_rewards_that_are_understood(reward: Any, expected: EvaluationResult) -> None:
    assert await ending_in(reward) == expected


@pytest.mark.parametrize(
    ("reward", "text"),
    [
        (math.nan, "not finite"),
        (math.inf, "not finite"),
        (1.0001, "outside [0, 1]"),
        (-0.1, "outside [0, 1]"),
        ("1.0", "not a number"),
        (None, "not a number"),
        ([1.0], "not a number"),
        ({}, "no field 'score'"),
        ({"score": 0.5, "reward": 1}, "unknown field 'reward'"),
        ({"score": math.nan}, "not finite"),
        ({"score": 0.5, "success": "yes"}, "not a bool"),
        ({"score": 0.5, "subscores": "a"}, "not a list"),
        ({"score": 0.5, "subscores": [{"value": 1}]}, "needs 'name' and 'value'"),
        ({"score": 0.5, "subscores": [{"name": "a", "value": 2}]}, "outside [0, 1]"),
        ({"score": 0.5, "subscores": [{"name": "a", "value": 1, "weight": -1}]}, "weight -1"),
        ({"score": 0.5, "subscores": [{"name": "", "value": 1}]}, "non-empty"),
        ({"score": 0.5, "subscores": [nested(33)]}, "children in more than 32 levels"),
        ({"score": 0.5, "subscores": [{"name": "a", "value": 1, "x": 1}]}, "unknown field 'x'"),
        (10**400, "not a number: int too large"),
        ([10**5000], "a value of type list"),
        (1j, "not a number"),
        (float, "not a number"),
        (Decimal("sNaN"), "not a number: cannot convert signaling NaN"),
        ({"score": 0.5, "info": [1]}, "info is [1], not an object"),
        ({"score": 0.5, "info": {"turn_rewards": [10**400]}}, "turn_rewards[0] is 1000"),
        (
            {"score": 0.5, "subscores": [{"name": "a", "value": 1, "info": [1]}]},
            "info of subscore 'a' is [1]",
        ),
        ({"score": 0.5, "subscores": [{"name": "a", "value": 1, "weight": 10**400}]}, "weight 1000"),
    ],
)
async def test_a_reward_of_wrong_type_or_range_is_reward_invalid(reward: Any, text: str) -> None:
    with pytest.raises(RewardInvalid) as caught:
        await ending_in(reward)
    assert text in str(caught.value)
    assert caught.value.kind == "reward_invalid"


async def test_subscores_of_200_levels_are_refused_and_of_32_kept() -> None:
    assert (await ending_in({"score": 1.0, "subscores": [nested(32)]})).score == 1.0
    with pytest.raises(RewardInvalid, match="more than 32 levels"):
        await ending_in({"score": 1.0, "subscores": [nested(200)]})


def test_a_graded_episode_survives_the_wire() -> None:
    tree = SubScore("all", 0.5, children=(SubScore("part", 1.0, 2.0, {"why": "named"}),))
    result = EvaluationResult(0.5, True, (tree,), {"steps": 3}, content="ok")
    assert evaluation_result(result.to_json()) == result


async def test_every_way_to_break_the_protocol_is_a_typed_error() -> None:
    async def empty() -> AsyncGenerator[Any, Any]:
        return
        yield

    async def early() -> AsyncGenerator[Any, Any]:
        raise LookupError("no data")
        yield

    async def number() -> AsyncGenerator[Any, Any]:
        yield 3
        yield 1.0

    async def half_messages() -> AsyncGenerator[Any, Any]:
        yield [{"role": "user", "content": "a"}, "b"]
        yield 1.0

    for scenario, text in (
        (empty, "ended before its first yield"),
        (early, "LookupError: no data"),
        (number, "first yield is of type int"),
        (half_messages, "first yield is of type list"),
    ):
        with pytest.raises(ScenarioError, match=text):
            await play(scenario).start()


async def test_breaking_it_after_the_prompt() -> None:
    async def single() -> AsyncGenerator[Any, Any]:
        yield "go"

    def single_plain() -> Generator[Any, Any, None]:
        yield "go"

    async def late() -> AsyncGenerator[Any, Any]:
        yield "go"
        raise OSError("disk")

    async def third() -> AsyncGenerator[Any, Any]:
        yield "go"
        yield 1.0
        yield 0.0

    async def bad_cleanup() -> AsyncGenerator[Any, Any]:
        yield "go"
        yield 1.0
        raise RuntimeError("cleanup")

    for scenario, text in (
        (single, "before its second yield"),
        (single_plain, "before its second yield"),
        (late, "OSError: disk"),
        (third, "third time"),
        (bad_cleanup, "after its second yield: RuntimeError: cleanup"),
    ):
        started = play(scenario)
        await started.start()
        with pytest.raises(ScenarioError, match=text):
            await started.grade(Answer(""))


async def test_closing_early_runs_the_finally_blocks() -> None:
    closed: list[str] = []

    async def scenario() -> AsyncGenerator[Any, Any]:
        try:
            yield "go"
            yield 1.0
        finally:
            closed.append("done")

    started = play(scenario)
    await started.start()
    await started.close()
    assert closed == ["done"]
    with pytest.raises(ArgumentsInvalid, match="unknown argument 'colour'"):
        play(scenario, colour="red")
