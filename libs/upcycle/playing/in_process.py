"""Episodes in this process, played by a function: for tests of an environment, and for demonstrations."""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Final

from upcycle.environment.channel import ControlChannel
from upcycle.environment.loading import load_environment
from upcycle.playing.episode import EpisodeOpened, OpenEnvironment, PlayedEpisode, PlayLimits, play_episode
from upcycle.playing.hosting import SameProcessHost
from upcycle.playing.script_player import FunctionPlayer, ReplyFunction
from upcycle.task_rows import EnvironmentRef, Task

_START_S: Final = 120.0
"""The first episode's start includes that of attached MCP servers: a test of them survives a busy machine."""


def play_tasks(tasks: Iterable[Task], reply: ReplyFunction) -> list[PlayedEpisode]:
    """Each task once, one after the other, with `reply(task, messages)` as the player. Call it where no event
    loop runs. Raises PlayerFailed for what the function raises or returns that is no turn; what an
    environment does wrong is in its episode's `failure`."""
    return asyncio.run(_played(tasks, reply))


async def _played(tasks: Iterable[Task], reply: ReplyFunction) -> list[PlayedEpisode]:
    channels: dict[EnvironmentRef, ControlChannel] = {}
    limits, watcher, episodes = PlayLimits(start_s=_START_S), EpisodeOpened(), list[PlayedEpisode]()
    async with AsyncExitStack() as stack:
        for task in tasks:
            where = task.environment
            if where not in channels:
                host = SameProcessHost(load_environment(where.path, where.name))
                channels[where] = await stack.enter_async_context(host.channel())
            player = FunctionPlayer(reply, task, getattr(reply, "__name__", "reply"))
            environment = OpenEnvironment(channels[where], _ended_how)
            played = play_episode(task, environment, player, limits, watcher)
            episodes.append(await played)
    return episodes


async def _ended_how() -> str:
    return "it left its channel"
