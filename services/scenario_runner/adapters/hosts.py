"""The host for each kind of environment source."""

from scenario_runner.adapters.forked_host import ForkedHost
from scenario_runner.adapters.tcp_host import TcpHost
from scenario_runner.domain.environments import (
    EnvironmentDescription,
    EnvironmentSource,
    EpisodeToPlay,
    GeneratedTask,
    PythonEnvironment,
    TaskOrder,
)
from scenario_runner.ports import LiveEnvironment
from upcycle.environment.source_files import SourceFiles


class Hosts:
    """Implements EnvironmentHost over both kinds."""

    def __init__(self, forked: ForkedHost, tcp: TcpHost) -> None:
        self.forked = forked
        self.tcp = tcp

    async def start(self, episode: EpisodeToPlay) -> LiveEnvironment:
        """Raises EpisodeFault, EpisodeTimeout, EnvironmentBroken, EnvironmentLost."""
        if isinstance(episode.source, PythonEnvironment):
            return await self.forked.start(episode)
        return await self.tcp.start(episode)

    async def generate(self, order: TaskOrder) -> GeneratedTask:
        """Have a new task made. Raises EpisodeFault, EpisodeTimeout, EnvironmentBroken,
        EnvironmentLost."""
        if isinstance(order.source, PythonEnvironment):
            return await self.forked.generate(order)
        return await self.tcp.generate(order)

    async def describe(self, source: EnvironmentSource) -> EnvironmentDescription:
        """Load an environment without playing it. Raises EnvironmentBroken."""
        if isinstance(source, PythonEnvironment):
            return await self.forked.describe(source)
        return await self.tcp.describe(source)

    async def files_now(self, source: EnvironmentSource) -> SourceFiles | None:
        """The code that judges the environment's episodes as it lies there now; None for one that is served
        elsewhere. Raises EnvironmentBroken."""
        return await self.forked.files_now(source) if isinstance(source, PythonEnvironment) else None

    async def stop(self) -> None:
        """End every environment process."""
        await self.forked.stop()
