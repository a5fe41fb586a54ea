"""`@env.state()`: read at the prompt, after each tool call, before the grade; kept, and given to graders."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.libs.upcycle import counting_states

from upcycle import Environment, Task
from upcycle import states as states_module
from upcycle.environment.channel import ChannelError, ControlChannel
from upcycle.errors import DefinitionError
from upcycle.harness import AssistantTurn, ToolCall
from upcycle.harness.chat import ChatReply, Messages
from upcycle.playing.episode import EpisodeOpened, OpenEnvironment, PlayedEpisode, PlayLimits, play_episode
from upcycle.playing.hosting import SameProcessHost
from upcycle.states import StateEntry, read_states

FILE = Path(counting_states.__file__)
WRITING, BROKEN = counting_states.tasks


class Writer:
    """Implements ChatPlayer: writes lines in one turn, then answers."""

    def __init__(self, *calls: dict[str, Any]) -> None:
        self._calls = tuple(ToolCall("write", call) for call in calls)

    async def reply(self, messages: Messages, tools: Messages, max_tokens: int) -> ChatReply:
        done = messages[-1]["role"] == "tool" or not self._calls
        return ChatReply(AssistantTurn("done") if done else AssistantTurn("", self._calls))


@asynccontextmanager
async def fresh() -> AsyncIterator[tuple[ControlChannel, SameProcessHost]]:
    """The environment as it was imported."""
    counting_states.notes["lines"] = []
    host = SameProcessHost(counting_states.env)
    async with host.channel() as channel:
        yield channel, host


async def played(*calls: dict[str, Any], task: Task = WRITING) -> PlayedEpisode:
    async with fresh() as (channel, host):
        environment = OpenEnvironment(channel, host.ended_how)
        return await play_episode(task, environment, Writer(*calls), PlayLimits(), EpisodeOpened())


async def test_the_states_of_an_episode_and_what_its_grader_reads() -> None:
    episode = await played({"line": "one"}, {"line": "two"})
    lines = [["one"], ["one", "two"]]
    title = counting_states.notes["title"]
    expected = [{"title": title, "lines": some} for some in ([], *lines, lines[-1])]
    assert [state.value for state in episode.states] == expected
    assert episode.result is not None
    assert episode.result.score == 1.0
    assert episode.result.info["states"] == expected
    assert episode.to_json()["states"][1] == {"value": expected[1], "note": ""}


async def test_a_state_that_changed_a_little_is_kept_as_a_patch() -> None:
    episode = await played({"line": "one"})
    (outcome,) = episode.turns[0].outcomes
    assert json.loads(outcome.state.patch) == [{"op": "add", "path": "/lines/-", "value": "one"}]
    assert episode.last_state == StateEntry(patch="[]")
    assert "state" not in outcome.content


async def test_a_state_that_is_too_large_is_left_out_by_name() -> None:
    episode = await played({"line": "x", "times": 70_000}, {"line": "only one"})
    first, large, small, last = episode.states
    assert large.value is None
    assert large.note.startswith("left out: the state has 700")
    assert large.note.endswith("bytes, limit 65536")
    assert (small.value["lines"], last.value, first.value["lines"]) == (["only one"], small.value, [])


async def test_all_states_of_an_episode_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states_module, "MAX_STATES_BYTES", 150)
    episode = await played({"line": "a" * 40}, {"line": "b" * 40}, {"line": "c"})
    noted = [state.note for state in episode.states]
    assert noted == ["", "", "left out: the states of the episode exceed 150 bytes", noted[3], noted[4]]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("raise", f"@env.state() failed: KeyError: 'missing' ({FILE}:21)"),
        ("odd", "@env.state() failed: TypeError: what it returned is not JSON: "),
    ],
)
async def test_a_function_that_fails_later_is_named_and_the_episode_goes_on(line: str, why: str) -> None:
    episode = await played({"line": line})
    assert [state.note[: len(why)] for state in episode.states] == ["", why, why]
    assert episode.result is not None
    assert episode.result.score == 0.0


async def test_a_function_that_takes_long_is_left() -> None:
    episode = await played({"line": "slow"})
    assert episode.states[1].note == "@env.state() failed: TimeoutError: it took longer than 2 s"
    assert episode.result is not None


async def test_a_function_that_fails_at_the_prompt_is_the_authors_error() -> None:
    episode = await played(task=BROKEN)
    assert episode.failure is not None
    assert (episode.failure.kind, episode.failure.during) == ("scenario_error", "prompt")
    assert episode.failure.message == "@env.state() failed: KeyError: 'missing'"
    assert f'File "{FILE}", line 21' in episode.failure.traceback


async def test_an_environment_without_a_state_sends_none() -> None:
    env = Environment("plain")

    @env.tool()
    def look() -> str:
        return "seen"

    @env.scenario()
    async def one() -> Any:
        answer = yield "?"
        yield float(answer.trajectory.states == ())

    host = SameProcessHost(env)
    async with host.channel() as channel:
        assert await channel.call("tasks.start", {"id": "one"}, timeout_s=30) == {"prompt": "?"}
        assert (await channel.call_tool("look", {})).state is None
        assert await channel.call("tasks.state", {}, timeout_s=30) == {}
        assert (await channel.grade("x"))["score"] == 1.0


async def test_the_last_state_is_read_once_and_belongs_to_its_task() -> None:
    async with fresh() as (channel, _):
        await channel.start("writing", {})
        await channel.call_tool("write", {"line": "one"})
        assert await channel.last_state() == await channel.last_state()
        assert len((await channel.grade("x"))["info"]["states"]) == 3
        assert await channel.call("tasks.state", {}, timeout_s=30) == {}
        assert (await channel.call_tool("write", {"line": "two"})).state is None  # no task is begun
        await channel.start("writing", {})
        assert channel.first_state is not None
        assert json.loads(channel.first_state.value)["lines"] == ["one", "two"]
        with pytest.raises(ChannelError, match="has no scenario"):
            await channel.start("nothing", {})


def test_entries_that_cannot_be_read_say_so() -> None:
    entries = [StateEntry(patch='[{"op":"add","path":"/a","value":1}]'), StateEntry("{"), StateEntry()]
    states = read_states([*entries, StateEntry('{"a":0}'), StateEntry(note="left out"), entries[0]])
    assert [state.value for state in states] == [None, None, None, {"a": 0}, None, {"a": 1}]
    assert [state.note.partition(":")[0] for state in states] == [
        "it cannot be read", "it cannot be read", "it was not kept", "", "left out", ""
    ]  # fmt: skip


def test_what_cannot_be_a_state_is_refused_where_it_is_declared() -> None:
    env = Environment("wrong")
    with pytest.raises(DefinitionError, match=r"@env\.state\(\): of takes arguments"):

        @env.state()
        def of(what: str) -> str:
            return what

    @env.state()
    def one() -> str:
        return ""

    with pytest.raises(DefinitionError, match=r"has two functions for @env\.state"):
        env.state()(one)
