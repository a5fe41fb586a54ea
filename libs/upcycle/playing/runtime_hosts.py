"""Where the episodes of an evaluation in this process are played, as `runtime=` says."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from upcycle.environment.channel import ChannelClosed
from upcycle.errors import UpcycleError
from upcycle.platform import Addresses, Platform
from upcycle.playing.forking import EpisodeHosts, PlainHosts, SameProcessHosts, hosts_of
from upcycle.playing.hosting import EnvironmentHost, ServedHost
from upcycle.runtimes import (
    ChosenRuntime,
    LocalRuntime,
    PlayRuntime,
    Runtime,
    RuntimeContext,
    RuntimeRefused,
    address_in,
)
from upcycle.task_rows import EnvironmentRef, Task

log: Final = logging.getLogger(__name__)

_NEEDS_PATH: Final = "leave runtime out: its tasks name where it is served"


def runtime_of(given: Any) -> ChosenRuntime:
    """What is meant. Raises RuntimeRefused for what is no runtime, and for a platform."""
    if isinstance(given, Platform | Addresses):
        raise RuntimeRefused(
            "runtime is a platform, and this agent plays in this process: no fleet lends it an environment",
            "leave runtime out, or name a served environment: Runtime('tcp://host:port')",
        )
    if isinstance(given, Runtime | LocalRuntime):
        return given
    if isinstance(given, str):
        return LocalRuntime(given) if given in set(LocalRuntime) else Runtime(given)
    if isinstance(given, AbstractAsyncContextManager) or callable(given):
        chosen: ChosenRuntime = given
        return chosen
    raise RuntimeRefused(
        f"runtime is {given!r:.200}",
        "give 'forked', 'in-process', Runtime('tcp://host:port'), or an async context manager of one",
    )


@asynccontextmanager
async def opened_hosts(
    environment: EnvironmentRef, runtime: PlayRuntime | None
) -> AsyncIterator[EpisodeHosts]:
    """Where the episodes of an environment are played, until the block ends. Raises RuntimeRefused, what
    loading the environment raises, NothingServed where nothing is, and what a context raises."""
    chosen = LocalRuntime.FORKED if runtime is None else runtime_of(runtime)
    match chosen:
        case LocalRuntime():
            hosts = await _local(environment, chosen)
            try:
                yield hosts
            finally:
                await asyncio.to_thread(hosts.close)
        case Runtime(url):
            yield await _served(url, environment.name)
        case AbstractAsyncContextManager():  # first: those of contextlib are functions, too
            async with chosen as given:
                yield await _served(address_in(given, f"runtime {_name(chosen)}"), environment.name)
        case _:
            yield _ProvidedHosts(chosen, environment.name)


async def _local(environment: EnvironmentRef, chosen: LocalRuntime) -> EpisodeHosts:
    if chosen is LocalRuntime.FORKED:
        return await asyncio.to_thread(hosts_of, environment)
    if not environment.path:
        raise RuntimeRefused(f"environment {environment.name!r} is no file of this machine", _NEEDS_PATH)
    return SameProcessHosts(environment)


async def _served(url: str, name: str) -> EpisodeHosts:
    """Greeted once, so that what is wrong is said before any episode."""
    async with ServedHost(url, name).channel():
        return PlainHosts(f"at {url}", lambda: ServedHost(url, name))


class _ProvidedHosts:
    """A function of the task makes the place of each episode."""

    def __init__(self, provider: Callable[[Task], RuntimeContext], name: str) -> None:
        self._provider, self._environment = provider, name
        self.where = f"where {_name(provider)} says"

    async def new(self, task: Task) -> EnvironmentHost:
        """Enter what the function returns. Raises ChannelClosed for what that raises, RuntimeRefused for what
        is no context, or gives no address."""
        whose = f"runtime {_name(self._provider)}"
        try:
            context = self._provider(task)
            if not isinstance(context, AbstractAsyncContextManager):
                raise RuntimeRefused(
                    f"{whose} returned {context!r:.200} for task {task.slug!r}",
                    "let it return an async context manager: @contextlib.asynccontextmanager",
                )
            given = await context.__aenter__()
        except UpcycleError:
            raise
        except Exception as error:
            raise ChannelClosed(f"{whose} raised {type(error).__name__}: {error}") from error
        try:
            return _ProvidedHost(address_in(given, whose), self._environment, context, whose)
        except RuntimeRefused:
            await _leave(context, whose)
            raise

    def close(self) -> None:
        """Each episode ends its own."""


class _ProvidedHost(ServedHost):
    """A served environment, and the context that holds it."""

    def __init__(self, url: str, name: str, context: RuntimeContext, whose: str) -> None:
        super().__init__(url, name)
        self._context: RuntimeContext | None = context
        self._whose = whose

    async def end(self) -> None:
        """Leave the context."""
        context, self._context = self._context, None
        if context is not None:
            await _leave(context, self._whose)


async def _leave(context: RuntimeContext, whose: str) -> None:
    """What it raises is logged: the episode is over."""
    try:
        await context.__aexit__(None, None, None)
    except Exception:
        log.warning("%s raised at its end", whose, exc_info=True)


def _name(provider: Any) -> str:
    return str(getattr(provider, "__name__", "") or type(provider).__name__)
