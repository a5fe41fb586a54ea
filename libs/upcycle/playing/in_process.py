"""Episodes that a function plays in this process: for tests of an environment, and for demonstrations."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from upcycle.environment.channel import ControlChannel
from upcycle.environment.loading import load_environment
from upcycle.playing.episode import EpisodeOpened, OpenEnvironment, PlayedEpisode, PlayLimits, play_episode
from upcycle.playing.forking import EpisodeHosts
from upcycle.playing.hosting import SameProcessHost
from upcycle.playing.runtime_hosts import opened_hosts
from upcycle.playing.script_player import FunctionPlayer, ReplyFunction
from upcycle.runtimes import PlayRuntime
from upcycle.task_rows import EnvironmentRef, Task

_START_S: Final = 120.0
"""The first episode's start includes that of attached MCP servers: a test of them survives a busy machine."""


def play_tasks(
    tasks: Iterable[Task], reply: ReplyFunction, *, runtime: PlayRuntime | None = None
) -> list[PlayedEpisode]:
    """Each task once, one after the other, with `reply(task, messages)` as the player. Call it where no event
    loop runs. runtime: of each episode's environment (upcycle.runtimes); by default this process, in which
    all share one. Raises PlayerFailed for what the function raises or returns that is no turn; what an
    environment does wrong is in its episode's `failure`."""
    return asyncio.run(_played(tasks, reply, runtime))


async def _played(
    tasks: Iterable[Task], reply: ReplyFunction, runtime: PlayRuntime | None
) -> list[PlayedEpisode]:
    places = dict[EnvironmentRef, _Shared | _Apart]()
    limits, watcher, episodes = PlayLimits(start_s=_START_S), EpisodeOpened(), list[PlayedEpisode]()
    async with AsyncExitStack() as stack:
        for task in tasks:
            if task.environment not in places:
                place = _Shared(stack, task.environment) if runtime is None else _Apart(stack, runtime)
                places[task.environment] = place
            player = FunctionPlayer(reply, task, getattr(reply, "__name__", "reply"))
            async with places[task.environment].opened(task) as environment:
                episodes.append(await play_episode(task, environment, player, limits, watcher))
    return episodes


class _Shared:
    """One environment in this process for all tasks of it."""

    def __init__(self, stack: AsyncExitStack, environment: EnvironmentRef) -> None:
        self._stack, self._environment = stack, environment
        self._channel: ControlChannel | None = None

    @asynccontextmanager
    async def opened(self, _task: Task) -> AsyncIterator[OpenEnvironment]:
        if self._channel is None:
            host = SameProcessHost(load_environment(self._environment.path, self._environment.name))
            self._channel = await self._stack.enter_async_context(host.channel())
        yield OpenEnvironment(self._channel, _ended_how)


class _Apart:
    """One for each episode, as a runtime says."""

    def __init__(self, stack: AsyncExitStack, runtime: PlayRuntime) -> None:
        self._stack, self._runtime = stack, runtime
        self._hosts: EpisodeHosts | None = None

    @asynccontextmanager
    async def opened(self, task: Task) -> AsyncIterator[OpenEnvironment]:
        if self._hosts is None:
            self._hosts = await self._stack.enter_async_context(opened_hosts(task.environment, self._runtime))
        host = await self._hosts.new(task)
        try:
            async with host.channel() as channel:
                yield OpenEnvironment(channel, host.ended_how)
        finally:
            await host.end()


async def _ended_how() -> str:
    return "it left its channel"
