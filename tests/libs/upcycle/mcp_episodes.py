"""One episode of an environment with an attached MCP server, and whose failure it is."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from upcycle import Environment
from upcycle.harness import AssistantTurn, ToolCall
from upcycle.harness.chat import ChatReply, Messages
from upcycle.playing.blame import Blame, blame_for
from upcycle.playing.episode import EpisodeOpened, OpenEnvironment, PlayedEpisode, PlayLimits, play_episode
from upcycle.playing.forking import PlainHosts
from upcycle.playing.hosting import SameProcessHost

Calls = Sequence[tuple[str, Mapping[str, Any]]]
RAW = {"command": sys.executable, "args": [str(Path(__file__).with_name("mcp_raw.py"))]}


class Calling:
    """Calls these tools, one a turn, and says what the last one returned. read: all results."""

    def __init__(self, calls: Calls) -> None:
        self._left = list(calls)
        self.read: list[str] = []

    async def reply(self, messages: Messages, tools: Messages, max_tokens: int) -> ChatReply:
        if messages[-1]["role"] == "tool":
            self.read.append(str(messages[-1]["content"]))
        if not self._left:
            return ChatReply(AssistantTurn("done"))
        name, arguments = self._left.pop(0)
        return ChatReply(AssistantTurn("", (ToolCall(name, dict(arguments)),)))


async def play(
    server: Mapping[str, Any], calls: Calls, *, tool_s: float = 30.0, start_s: float = 60.0
) -> tuple[PlayedEpisode, list[str], Blame]:
    """The episode, what each call returned, and whose failure it is."""
    env = Environment("attached")
    env.connect_mcp_config({"odd": server})

    @env.scenario("ask")
    async def ask() -> Any:
        yield "Go."
        yield 1.0

    limits, player = PlayLimits(start_s=start_s, tool_s=tool_s), Calling(calls)
    host = SameProcessHost(env)
    async with host.channel() as channel:
        opened = OpenEnvironment(channel, host.ended_how)
        episode = await play_episode(ask.task(), opened, player, limits, EpisodeOpened())
    hosts = PlainHosts("here", lambda: SameProcessHost(env))
    return episode, player.read, await blame_for(episode, hosts, limits, "")
