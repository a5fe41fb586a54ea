"""Environments that another process serves over TCP on the control channel, HUD's included.

One connection per episode. An environment that speaks `tools.*` is asked for its tools; any other offers
them as MCP servers among its bindings, reached through the channel's tunnel.
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from episodes import EpisodeFailure
from scenario_runner.adapters.channel_environment import ChannelEnvironment
from scenario_runner.domain.environments import (
    EnvironmentBroken,
    EnvironmentDescription,
    EnvironmentLost,
    EpisodeFault,
    EpisodeTimeouts,
    EpisodeToPlay,
    GeneratedTask,
    TaskOrder,
    TcpEnvironment,
)
from upcycle.environment.channel import ChannelClosed, ChannelError, ControlChannel
from upcycle.environment.channel.client import ChannelTimeout
from upcycle.environment.channel.frames import understood
from upcycle.environment.foreign_tools import attached_tools, call_attached
from upcycle.errors import ToolFailed


class TcpHost:
    """Implements EnvironmentHost for TcpEnvironment sources."""

    def __init__(self, timeouts: EpisodeTimeouts) -> None:
        self._timeouts = timeouts

    async def start(self, episode: EpisodeToPlay) -> ChannelEnvironment:
        """Raises EpisodeFault, EpisodeTimeout, EnvironmentBroken, EnvironmentLost."""
        assert isinstance(episode.source, TcpEnvironment)  # noqa: S101 - chosen by the caller
        url = episode.source.url
        async with AsyncExitStack() as stack:
            channel = await _connected(url)
            stack.push_async_callback(channel.close)
            environment = await self._environment(channel, url, stack)
            await environment.start(episode)
            stack.pop_all()
        return environment

    async def describe(self, source: Any) -> EnvironmentDescription:
        """Ask a served environment what it offers. Raises EnvironmentBroken."""
        try:
            channel = await _connected(source.url)
        except EnvironmentLost as error:
            raise EnvironmentBroken(str(error)) from error
        try:
            rows = await _scenarios(channel, source.url)
        finally:
            await channel.close()
        scenarios = {name: dict(row.get("args") or {}) for name, row in rows.items()}
        welcome = channel.welcome
        assert welcome is not None  # noqa: S101 - _connected said hello
        guided = frozenset(name for name, row in rows.items() if row.get("guidance") is True)
        generating = frozenset(name for name, row in rows.items() if row.get("generator") is True)
        left_overs = frozenset(name for name, row in rows.items() if row.get("left_over") is True)
        proposers = {name: str(row["proposed_by"]) for name, row in rows.items() if row.get("proposed_by")}
        return EnvironmentDescription(
            welcome.name,
            welcome.version,
            scenarios,
            (),
            guided=guided,
            generating=generating,
            proposers=proposers,
            left_overs=left_overs,
        )

    async def generate(self, order: TaskOrder) -> GeneratedTask:
        """Have a new task made, on a connection of its own. Raises EpisodeFault, EpisodeTimeout,
        EnvironmentBroken, EnvironmentLost."""
        assert isinstance(order.source, TcpEnvironment)  # noqa: S101 - chosen by the caller
        url = order.source.url
        channel = await _connected(url)
        environment = ChannelEnvironment(
            channel, self._timeouts, on_close=_nothing, explain_loss=partial(_lost, url)
        )
        try:
            scenarios = await _scenarios(channel, url)
            schema = dict(scenarios.get(order.scenario, {}).get("args") or {})
            return GeneratedTask(await environment.generate(order), schema)
        finally:
            await environment.close()

    async def _environment(
        self, channel: ControlChannel, url: str, stack: AsyncExitStack
    ) -> ChannelEnvironment:
        mine = AsyncExitStack()
        stack.push_async_callback(mine.aclose)

        lost = partial(_lost, url)
        welcome = channel.welcome
        assert welcome is not None  # noqa: S101 - _connected said hello
        if welcome.speaks_tools:
            environment = ChannelEnvironment(channel, self._timeouts, on_close=mine.aclose, explain_loss=lost)
            await environment.list_tools()
            return environment
        try:
            tools = await attached_tools(url, welcome.bindings, mine)
        except (ToolFailed, ChannelError) as error:
            raise EpisodeFault(EpisodeFailure.EXTERNAL_FAILURE, str(error)) from error
        call = partial(call_attached, tools, self._timeouts.tool_result_bytes)
        environment = ChannelEnvironment(
            channel, self._timeouts, on_close=mine.aclose, explain_loss=lost, tool_caller=call
        )
        environment.tools = tuple(tool.spec for tool in tools.values())
        return environment


async def _lost(url: str) -> Exception:
    return EnvironmentLost(f"the environment at {url} hung up")


async def _scenarios(channel: ControlChannel, url: str) -> dict[str, Mapping[str, Any]]:
    """The rows of its scenarios by name, whose arguments have a schema. Raises EnvironmentBroken."""
    try:
        with understood("the answer to tasks.list"):
            rows = {str(row["id"]): row for row in await channel.list_tasks()}
            for row in rows.values():
                dict(row.get("args") or {})
            return {**rows}
    except (ChannelError, ChannelClosed, ChannelTimeout) as error:
        raise EnvironmentBroken(f"{url} does not list its tasks: {error}") from error


async def _nothing() -> None:
    """Behind the connection is nothing of ours to end."""


async def _connected(url: str) -> ControlChannel:
    try:
        channel = await ControlChannel.connect(url)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(channel.close)
            await channel.hello()
            stack.pop_all()
    except (ChannelClosed, ChannelError, ChannelTimeout) as error:
        raise EnvironmentLost(f"{url}: {error}") from error
    return channel
