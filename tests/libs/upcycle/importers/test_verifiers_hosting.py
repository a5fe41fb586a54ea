"""An environment of another library as one of ours, with a stand-in for the library; the real versions are in
tests/contract/verifiers."""

import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from upcycle.environment.channel import ChannelError, ChannelServer, ControlChannel
from upcycle.environment.tools import ToolResult, ToolSpec
from upcycle.importers.errors import ImportRefused
from upcycle.importers.verifiers.__main__ import load
from upcycle.importers.verifiers.hosting import (
    ImportedEnvironment,
    RewardRange,
    Scored,
    ScoredFunction,
    content_of,
)
from upcycle.transcripts import Answer


class JudgeAway(Exception):
    """As the clients of model servers raise it."""


UNIT: Final = RewardRange()
JudgeAway.__module__ = "openai._exceptions"


class Play:
    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row

    async def begin(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self._row["question"]}]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if arguments.get("at") == "away":
            raise ConnectionError("no shop today")
        if arguments.get("at") == "odd":
            raise KeyError("odd")
        return ToolResult(f"{name} at {arguments['at']}")

    async def score(self, answer: Answer) -> Scored:
        if answer == "judge":
            raise ValueError("the rubric failed") from JudgeAway("connection refused")
        if answer == "bug":
            raise ValueError("no such answer")
        right = float(answer == self._row["answer"])
        functions = [ScoredFunction("right", right, 1.0), ScoredFunction("turns", 3.0, 0.0)]
        return Scored(2.0 if answer == "two" else right, functions, {"seen": True})


class Shop:
    name, version = "shop", "9"
    weights: Sequence[float] = (1.0, 0.0)
    rows: Mapping[str, Sequence[Any]] = {"train": [{"question": "2?", "answer": "2"}, {"question": "3?"}]}

    async def tools(self) -> Sequence[ToolSpec]:
        return [ToolSpec("look", "Look.", {"type": "object", "properties": {"at": {"type": "string"}}})]

    def play(self, split: str, row: int) -> Play:
        return Play(self.rows[split][row])


@asynccontextmanager
async def channel(rewards: RewardRange = UNIT) -> AsyncIterator[ControlChannel]:
    server = await ChannelServer(ImportedEnvironment(Shop(), rewards)).listen("127.0.0.1", 0)
    opened = await ControlChannel.connect(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await opened.hello()
    try:
        yield opened
    finally:
        await opened.close()
        server.close()


async def test_a_row_is_played_with_the_tools_and_graded_by_the_functions() -> None:
    async with channel() as shop:
        assert [tool.name for tool in await shop.list_tools()] == ["look"]
        content = content_of(Shop.rows["train"][0])
        assert await shop.start("row", {"row": 0, "content": content}) == [{"role": "user", "content": "2?"}]
        assert (await shop.call_tool("look", {"at": "tea"})).text == "look at tea"
        odd = await shop.call_tool("look", {"at": "odd"})
        assert (odd.is_error, odd.text) == (True, "look: KeyError: 'odd'")
        grade = await shop.grade("2")
        assert (grade["score"], grade["success"]) == (1.0, True)
        assert grade["subscores"] == [{"name": "right", "weight": 1.0, "value": 1.0}]
        assert grade["info"] == {"reward": 1.0, "metrics": {"turns": 3.0}, "seen": True}


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        ("judge", "external_failure", "JudgeAway: connection refused"),
        ("bug", "scenario_error", "no such answer"),
        ("two", "reward_invalid", "reward is 2.0, outside [0, 1]"),
    ],
)
async def test_what_fails_in_a_grade_is_no_reward(answer: str, kind: str, said: str) -> None:
    async with channel() as shop:
        await shop.start("row", {"row": 0})
        with pytest.raises(ChannelError) as failed:
            await shop.grade(answer)
        assert failed.value.error_kind == kind
        assert said in str(failed.value)


async def test_a_tool_that_cannot_reach_what_it_asks_says_so() -> None:
    async with channel() as shop:
        await shop.start("row", {"row": 0})
        with pytest.raises(ChannelError, match="no shop today") as failed:
            await shop.call_tool("look", {"at": "away"})
        assert failed.value.error_kind == "external_failure"


async def test_a_tool_before_a_row_is_an_error_that_the_agent_reads() -> None:
    async with channel() as shop:
        assert (await shop.call_tool("look", {"at": "tea"})).text == "look: no row is played"


async def test_a_reward_counts_as_its_part_of_the_range() -> None:
    async with channel(RewardRange(-1, 3)) as shop:
        await shop.start("row", {"row": 0})
        grade = await shop.grade("two")
        assert (grade["score"], grade["info"]["reward"]) == (0.75, 2.0)


def test_tasks_say_what_their_row_holds() -> None:
    first, second = ImportedEnvironment(Shop(), RewardRange()).tasks("train", "tcp://h:1")
    assert (first.slug, first.args["row"], first.environment.url) == ("train-000000", 0, "tcp://h:1")
    assert first.args["content"] != second.args["content"]
    other = ImportedEnvironment(Shop(), RewardRange()).tasks("train", "tcp://h:2")
    assert first.digest == other[0].digest


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ((1.0, 0.2), "rewards may be from 0 to 1.2, and ours are from 0 to 1; give --reward-range 0 1.2"),
        ((1.0, -0.5), "rewards may be from -0.5 to 1"),
    ],
)
def test_weights_that_leave_the_unit_interval_are_for_a_person_to_say(
    weights: Sequence[float], said: str
) -> None:
    with pytest.raises(ImportRefused) as refused:
        RewardRange.of_weights(weights)
    assert said in str(refused.value)


def test_a_range_is_no_range_backwards() -> None:
    assert RewardRange.of_weights([0.5, 0.25]) == RewardRange(0, 1)
    assert RewardRange(0, 1.2).part(1.2) == 1.0
    with pytest.raises(ImportRefused, match="1 to 1"):
        RewardRange(1, 1)
    assert RewardRange(0, 2).part(3) == 1.5


def test_a_python_without_the_library_says_so() -> None:
    with pytest.raises(ImportRefused, match="this Python cannot import verifiers"):
        load("shop", {}, 0)


@pytest.mark.parametrize(
    ("given", "said"), [("{", "'{' is not JSON: Expecting"), ("[]", "'[]' is no object")]
)
def test_arguments_that_are_no_object_are_named_with_the_way_out(given: str, said: str) -> None:
    command = [sys.executable, "-m", "upcycle.importers.verifiers", "shop", "--args", given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert f"argument --args: {said}" in last
    assert last.endswith("""write '{"num_examples": 100}'""")
