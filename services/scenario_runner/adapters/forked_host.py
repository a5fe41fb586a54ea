"""Environments as processes forked from one zygote per environment file and source."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from episodes import EpisodeFailure
from scenario_runner.adapters.channel_environment import (
    ChannelEnvironment,
    EpisodeProcess,
    description_from,
    loss_of,
)
from scenario_runner.adapters.printed_output import end_of_output
from scenario_runner.adapters.zygote_pool import FindSource, ZygotePool
from scenario_runner.adapters.zygotes import Forked, WarmEnvironment, ZygoteOptions
from scenario_runner.domain.environments import (
    EnvironmentBroken,
    EnvironmentDescription,
    EnvironmentLost,
    EpisodeFault,
    EpisodeTimeouts,
    EpisodeToPlay,
    GeneratedTask,
    PythonEnvironment,
    SecretsWithheld,
    TaskOrder,
)
from scenario_runner.domain.secrets import SecretsMissing
from upcycle.environment.channel import ControlChannel
from upcycle.environment.server_secrets import HiddenValues
from upcycle.environment.source_files import SourceFiles

FindSecrets = Callable[[str, Mapping[str, str]], Awaitable[Mapping[str, str]]]
"""Of an environment and the secrets that its MCP servers name: their values. Raises EnvironmentBroken."""


async def no_secrets(environment: str, named: Mapping[str, str]) -> Mapping[str, str]:
    """For a fleet without a store of them."""
    raise SecretsMissing(environment, named)


async def nothing_kept(digest: str) -> SourceFiles | None:
    """For a fleet without an object store."""
    return None


# How long the exit status may come after the end of the channel.
EXIT_WAIT_S = 2.0


class ForkedHost:
    """Implements EnvironmentHost for PythonEnvironment sources. A component: `stop` ends every process."""

    def __init__(
        self,
        options: ZygoteOptions,
        timeouts: EpisodeTimeouts,
        *,
        max_forks: int = 8,
        find_source: FindSource = nothing_kept,
        find_secrets: FindSecrets = no_secrets,
    ) -> None:
        self._timeouts = timeouts
        self._cell = options.cell
        self._find_secrets = find_secrets
        self._pool = ZygotePool(options, find_source)
        self._forks = asyncio.Semaphore(max_forks)

    async def start(self, episode: EpisodeToPlay) -> ChannelEnvironment:
        """Raises EpisodeFault, EpisodeTimeout, EnvironmentBroken (SecretsWithheld), EnvironmentLost."""
        assert isinstance(episode.source, PythonEnvironment)  # noqa: S101 - chosen by the caller
        zygote = await self.zygote(episode.source, episode.source_digest)
        if episode.without_secrets and zygote.description["secrets"]:
            raise SecretsWithheld(zygote.description["name"], zygote.description["secrets"])
        environment = await self._forked(zygote, await self._secrets(zygote))
        try:
            await environment.start(episode)
            if zygote.description["attaches_tools"]:
                await environment.list_tools()
            else:
                environment.tools = description_from(zygote.description).tools
        except BaseException:
            await environment.close()
            raise
        return environment

    async def generate(self, order: TaskOrder) -> GeneratedTask:
        """Have a new task made, in a process of its own without the secrets of MCP servers. Raises
        EpisodeFault, EpisodeTimeout, EnvironmentBroken, EnvironmentLost."""
        assert isinstance(order.source, PythonEnvironment)  # noqa: S101 - chosen by the caller
        zygote = await self.zygote(order.source, order.source_digest)
        environment = await self._forked(zygote, {})
        try:
            arguments = await environment.generate(order)
        finally:
            await environment.close()
        return GeneratedTask(arguments, description_from(zygote.description).scenarios[order.scenario])

    async def _forked(self, zygote: WarmEnvironment, secrets: Mapping[str, str]) -> ChannelEnvironment:
        hidden = HiddenValues(secrets)
        async with self._forks:
            forked = await zygote.fork(secrets)
        try:
            channel = await ControlChannel.over(forked.child.sock, speaks_tools=True, hidden=hidden)
        except BaseException:
            forked.child.sock.close()
            await zygote.end(forked)
            raise
        return ChannelEnvironment(
            channel,
            self._timeouts,
            on_close=partial(zygote.end, forked),
            explain_loss=_explainer(zygote, forked, hidden),
            source_digest=zygote.source_digest,
            process=EpisodeProcess(partial(_printed, forked, hidden), forked.child.ended.done),
        )

    async def describe(self, source: Any) -> EnvironmentDescription:
        """Load an environment (its zygote stays for its episodes). Raises EnvironmentBroken."""
        zygote = await self.zygote(source)
        return description_from(zygote.description)

    async def describe_packed(self, source: PythonEnvironment, files: SourceFiles) -> EnvironmentDescription:
        """Load an environment that was sent here. Raises EnvironmentBroken."""
        return description_from((await self._pool.load(source, files)).description)

    async def files_now(self, source: PythonEnvironment) -> SourceFiles:
        """The code that judges the environment's episodes as it lies there now. Raises EnvironmentBroken."""
        return await self._pool.files_now(source)

    async def zygote(self, source: PythonEnvironment, digest: str = "") -> WarmEnvironment:
        """The running zygote of an environment's source; a dead one is replaced. digest: "" is the source
        that lies there now. Raises EnvironmentBroken."""
        return await self._pool.get(source, digest)

    async def _secrets(self, zygote: WarmEnvironment) -> Mapping[str, str]:
        """Of its MCP servers. Raises EnvironmentBroken."""
        named = zygote.description["secrets"]
        if not named:
            return {}
        if refusal := self._cell.refusal_of_secrets():
            raise EnvironmentBroken(refusal)
        return await self._find_secrets(zygote.description["name"], named)

    async def stop(self) -> None:
        """End every zygote and its episodes."""
        await self._pool.stop()


def _printed(forked: Forked, hidden: HiddenValues) -> str:
    return end_of_output(forked.folder, hidden=hidden)


def _explainer(zygote: WarmEnvironment, forked: Forked, hidden: HiddenValues) -> Callable[[], Any]:
    async def explain() -> Exception:
        done, _ = await asyncio.wait([forked.child.ended], timeout=EXIT_WAIT_S)
        if not done:
            return EpisodeFault(
                EpisodeFailure.SCENARIO_ERROR, "the environment closed its control channel and went on"
            )
        if zygote.dead.done():
            return EnvironmentLost(f"the zygote of {zygote.source.path} died, and the episode with it")
        return loss_of(forked.child.ended.result(), _printed(forked, hidden))

    return explain
