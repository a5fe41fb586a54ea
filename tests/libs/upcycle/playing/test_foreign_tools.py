"""Environments of others, played here with their tools: MCP servers that the channel's tunnel reaches."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.libs.upcycle.test_served_sessions import served

from upcycle.cli.main import run as upcycle_command
from upcycle.environment.channel import client as channel_client
from upcycle.harness import AssistantTurn, ToolCall, TurnLimits
from upcycle.harness.chat import ChatReply
from upcycle.playing.episode import EpisodeOpened, OpenEnvironment, PlayedEpisode, PlayLimits, play_episode
from upcycle.playing.hosting import ServedHost
from upcycle.task_rows import EnvironmentRef, Task

SHOP = '''
import asyncio
from upcycle import Environment

env = Environment("shop")


@env.tool()
def stock(item: str) -> str:
    """How much there is."""
    return {"tea": "3"}[item]


@env.tool()
async def slow() -> str:
    await asyncio.sleep(600)
    return "late"


@env.scenario("count")
async def count(item: str):
    answer = yield f"How much {item}?"
    yield 1.0 if answer == "3" else 0.0
'''


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A served environment of which this side knows nothing but the common channel and its MCP binding."""
    monkeypatch.setattr(channel_client, "EXTENSION", "not/ours")
    (tmp_path / "env.py").write_text(SHOP)
    with served(tmp_path / "env.py") as (url, _):
        yield url


class Plays:
    """Says these turns, one after the other."""

    def __init__(self, *turns: AssistantTurn) -> None:
        self.turns = list(turns)
        self.read: list[str] = []

    async def reply(self, messages: Any, tools: Any, max_tokens: int) -> ChatReply:
        self.read = [one["content"] for one in messages if one["role"] == "tool"]
        return ChatReply(self.turns.pop(0))


def calling(name: str, **arguments: Any) -> AssistantTurn:
    return AssistantTurn("", (ToolCall(name, arguments),))


async def played(url: str, player: Plays, tool_s: float = 30.0) -> PlayedEpisode:
    task = Task(EnvironmentRef("shop", url=url), "count", '{"item":"tea"}', "tea")
    limits, host = PlayLimits(TurnLimits(8), tool_s=tool_s), ServedHost(url)
    async with host.channel() as channel:
        environment = OpenEnvironment(channel, host.ended_how)
        return await play_episode(task, environment, player, limits, EpisodeOpened())


async def test_its_tools_are_shown_called_and_refuse_as_on_the_platform(shop: str) -> None:
    player = Plays(
        calling("stock", item="tea"),
        calling("stock", item="gold"),
        calling("steal", item="tea"),
        AssistantTurn("3"),
    )
    episode = await played(shop, player)
    assert episode.failure is None
    assert sorted(tool["function"]["name"] for tool in episode.tools) == ["slow", "stock"]
    assert player.read[0] == "3"
    assert "KeyError" in player.read[1]
    assert player.read[2] == "no tool 'steal'; there is stock, slow"
    assert [outcome.is_error for turn in episode.turns for outcome in turn.outcomes] == [False, True, True]
    assert episode.result is not None
    assert episode.result.score == 1.0


async def test_a_wrong_answer_earns_nothing(shop: str) -> None:
    episode = await played(shop, Plays(calling("stock", item="tea"), AssistantTurn("4")))
    assert episode.result is not None
    assert episode.result.score == 0.0


async def test_a_tool_that_does_not_answer_is_named_and_the_next_episode_plays(shop: str) -> None:
    episode = await played(shop, Plays(calling("slow"), AssistantTurn("3")), tool_s=0.5)
    assert episode.failure is not None
    assert (episode.failure.during, episode.failure.kind) == ("tool slow", "timeout")
    assert "got no answer within 0.5 s" in episode.failure.message
    again = await played(shop, Plays(calling("stock", item="tea"), AssistantTurn("3")))
    assert again.result is not None
    assert again.result.score == 1.0


@pytest.mark.parametrize(
    ("binding", "text"),
    [
        ("mcp", "a binding does not follow the protocol"),
        ({"protocol": "mcp/1"}, "a binding does not follow the protocol: KeyError"),
        ({"name": "mcp", "protocol": "mcp/1", "url": "http://x/mcp"}, "MCP server 'mcp'"),
    ],
)
async def test_a_binding_that_leads_nowhere_fails_its_episode_by_name(binding: Any, text: str) -> None:
    hello = {"session_id": "s", "env": {"name": "theirs"}, "bindings": [binding]}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            try:
                call = json.loads(line)
            except ValueError:
                break  # the tunnel's own words
            result = hello if call["method"] == "hello" else {"prompt": "hi"}
            frame = {"jsonrpc": "2.0", "id": call["id"], "result": result}
            writer.write(json.dumps(frame).encode() + b"\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        episode = await played(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}", Plays())
    finally:
        server.close()
    assert episode.failure is not None
    assert (episode.failure.during, episode.failure.kind) == ("tools", "external_failure")
    assert text in episode.failure.message


def test_play_does_it_too(
    shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    task = {"slug": "tea", "scenario": "count", "args": {"item": "tea"}}
    rows = [{**task, "environment": {"name": "shop", "url": shop}}]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "script.py").write_text(
        "def reply(task, messages):\n"
        "    if messages[-1]['role'] == 'tool':\n"
        "        return messages[-1]['content']\n"
        "    return {'tool_calls': [{'name': 'stock', 'arguments': {'item': 'tea'}}]}\n"
    )
    status = upcycle_command(["play", "tasks.jsonl:tea", "--script", "script.py"])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    assert "stock" in printed.out
    assert "1.000" in printed.out
