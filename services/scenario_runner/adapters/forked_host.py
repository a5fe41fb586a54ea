"""Environments as processes forked from one zygote per environment file."""

import asyncio
import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from episodes import EpisodeFailure
from scenario_runner.adapters.channel_environment import ChannelEnvironment, description_from, loss_of
from scenario_runner.adapters.zygotes import Forked, WarmEnvironment, ZygoteOptions, remove_leftovers
from scenario_runner.domain.environments import (
    EnvironmentBroken,
    EnvironmentDescription,
    EnvironmentLost,
    EpisodeFault,
    EpisodeTimeouts,
    EpisodeToPlay,
    PythonEnvironment,
)
from upcycle.environment.channel import ControlChannel

# How long the exit status may come after the end of the channel.
EXIT_WAIT_S = 2.0

log = logging.getLogger(__name__)


class ForkedHost:
    """Implements EnvironmentHost for PythonEnvironment sources. A component: `stop` ends every process."""

    def __init__(self, options: ZygoteOptions, timeouts: EpisodeTimeouts, *, max_forks: int = 8) -> None:
        self._options = options
        self._timeouts = timeouts
        self._zygotes: dict[PythonEnvironment, asyncio.Task[WarmEnvironment]] = {}
        self._forks = asyncio.Semaphore(max_forks)
        self._has_swept = False

    async def start(self, episode: EpisodeToPlay) -> ChannelEnvironment:
        """Raises EpisodeFault, EpisodeTimeout, EnvironmentBroken, EnvironmentLost."""
        assert isinstance(episode.source, PythonEnvironment)  # noqa: S101 - chosen by the caller
        zygote = await self.zygote(episode.source)
        async with self._forks:
            forked = await zygote.fork()
        try:
            channel = await ControlChannel.over(forked.sock, speaks_tools=True)
        except BaseException:
            forked.sock.close()
            await zygote.end(forked)
            raise
        environment = ChannelEnvironment(
            channel,
            self._timeouts,
            on_close=partial(zygote.end, forked),
            explain_loss=_explainer(zygote, forked),
        )
        try:
            await environment.start(episode.scenario, json.loads(episode.args_json))
            if zygote.description["attaches_tools"]:
                await environment.list_tools()
            else:
                environment.tools = description_from(zygote.description).tools
        except BaseException:
            await environment.close()
            raise
        return environment

    async def describe(self, source: Any) -> EnvironmentDescription:
        """Load an environment (its zygote stays for its episodes). Raises EnvironmentBroken."""
        zygote = await self.zygote(source)
        return description_from(zygote.description)

    async def zygote(self, source: PythonEnvironment) -> WarmEnvironment:
        """The running zygote of an environment; a dead one is replaced. Raises EnvironmentBroken."""
        task = self._zygotes.get(source)
        if task is not None and task.done() and _is_dead(task):
            log.warning("zygote_replaced", extra={"path": source.path})
            task = None
        if task is None:
            task = asyncio.ensure_future(self._started(source))
            self._zygotes[source] = task
        return await asyncio.shield(task)

    async def stop(self) -> None:
        """End every zygote and its episodes."""
        tasks, self._zygotes = list(self._zygotes.values()), {}
        for task in tasks:
            task.cancel()
        zygotes = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(zygote.stop() for zygote in zygotes if isinstance(zygote, WarmEnvironment)))

    async def _started(self, source: PythonEnvironment) -> WarmEnvironment:
        if not self._has_swept:
            self._has_swept = True
            await asyncio.to_thread(remove_leftovers)
        zygote = WarmEnvironment(source, self._options)
        try:
            await zygote.start()
        except BaseException:
            await zygote.stop()
            raise
        described = zygote.description["name"]
        if described != source.name:
            await zygote.stop()
            raise EnvironmentBroken(
                f"{source.path} declares environment {described!r}, the taskset names {source.name!r}"
            )
        log.info("zygote_ready", extra={"path": source.path, "isolation": zygote.description["isolation"]})
        return zygote


def _is_dead(task: "asyncio.Task[WarmEnvironment]") -> bool:
    return task.cancelled() or task.exception() is not None or task.result().dead.done()


def _explainer(zygote: WarmEnvironment, forked: Forked) -> Callable[[], Any]:
    async def explain() -> Exception:
        done, _ = await asyncio.wait([forked.ended], timeout=EXIT_WAIT_S)
        if not done:
            return EpisodeFault(
                EpisodeFailure.SCENARIO_ERROR, "the environment closed its control channel and went on"
            )
        if zygote.dead.done():
            return EnvironmentLost(f"the zygote of {zygote.source.path} died, and the episode with it")
        return loss_of(forked.ended.result(), zygote.output_of(forked))

    return explain
