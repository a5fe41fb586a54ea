"""The life of a service: start in order, run until a signal or a death, stop in reverse.

Guarantees: every stop has a deadline; a second signal ends the process at once; a component or a background
task that dies by itself ends the process with a non-zero status and its name.
"""

import asyncio
import logging
import os
import signal
from typing import Final, TypeVar

from service_kit.background import BackgroundTasks
from service_kit.component import Component, TaskDied, Watched
from service_kit.deadlines import deadline
from service_kit.http_limits import PortLimits
from service_kit.ops_http import OpsHttp, Readiness
from service_kit.settings import ServiceSettings

log = logging.getLogger(__name__)

EXIT_FAILED: Final = 1
"""A component did not start, or did not stop within its deadline."""
EXIT_DIED: Final = 70
"""Something that must live as long as the process died; a supervisor restarts it."""

C = TypeVar("C", bound=Component)


class ComponentFailed(Exception):
    """A component could not be started; the cause is chained."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name = name
        self.why = why

    def __str__(self) -> str:
        return f"cannot start {self.name}: {self.why}"


class Service:
    """Owns the components of one process. `add` them in the order in which they depend on each other."""

    def __init__(self, name: str, settings: ServiceSettings, *, start_s: float = 60.0) -> None:
        """`start_s`: seconds that each component gets to start."""
        self.name = name
        self._start_s = start_s
        self._drain_s = settings.drain_s
        self._ops = OpsHttp(
            settings.host, settings.http_port, self.readiness, limits=PortLimits.of(settings.edge)
        )
        self._components: list[Component] = [self._ops]
        self._started: list[Component] = []
        self._phase = "created"
        self._stopping = asyncio.Event()
        self._tasks = BackgroundTasks(name)

    def add(self, component: C) -> C:
        """Append a component; it starts after, and stops before, those that were added earlier."""
        if self._phase != "created":
            raise RuntimeError(f"{component.name} was added to {self.name} while it is {self._phase}")
        self._components.append(component)
        return component

    @property
    def http_port(self) -> int:
        """Port of the operations endpoints, known once started."""
        return self._ops.port

    @property
    def tasks(self) -> BackgroundTasks:
        """For background work of the whole process; a death there ends the process."""
        return self._tasks

    def readiness(self) -> Readiness:
        """The answer of /readyz."""
        reasons: dict[str, str] = {}
        for component in self._components:
            why = component.ready() if component in self._started else "not started"
            if why is not None:
                reasons[component.name] = why
        return Readiness(self.name, self._phase, reasons)

    def request_stop(self) -> None:
        """What the first SIGTERM does."""
        self._stopping.set()

    async def run(self) -> int:
        """Start, run until a signal or a death, stop. Returns the exit status of the process."""
        self._install_signal_handlers()
        code = 0
        try:
            await self._until_stopped()
        except ComponentFailed as error:
            extra = {"component": error.name, "why": error.why}
            log.error("start_failed", extra=extra, exc_info=error.__cause__)
            code = EXIT_FAILED
        except TaskDied as error:
            log.critical("died", extra={"component": error.name, "why": error.why}, exc_info=error.__cause__)
            code = EXIT_DIED
        stopped_clean = await self.stop()
        return code or (0 if stopped_clean else EXIT_FAILED)

    async def start(self) -> None:
        """Start every component in order. Raises ComponentFailed; `stop` must still be called then."""
        self._phase = "starting"
        for component in self._components:
            await self._start_one(component)
        self._phase = "running"
        log.info("ready_to_work", extra={"http_port": self.http_port})

    async def stop(self) -> bool:
        """Stop what was started, last first, each within the drain deadline. True: all stopped clean."""
        self._phase = "stopping"
        clean = True
        while self._started:
            clean = await self._stop_one(self._started.pop()) and clean
        await self._tasks.cancel()
        self._phase = "stopped"
        return clean

    async def _start_one(self, component: Component) -> None:
        self._started.append(component)
        try:
            async with deadline(f"{component.name} to start", self._start_s):
                await component.start()
        except Exception as error:
            raise ComponentFailed(component.name, f"{type(error).__name__}: {error}") from error
        if isinstance(component, Watched):
            self._tasks.spawn(component.name, _watch(component.name, component))

    async def _stop_one(self, component: Component) -> bool:
        try:
            async with deadline(f"{component.name} to stop", self._drain_s):
                await component.stop()
        except Exception as error:
            log.exception("stop_failed", extra={"component": component.name, "why": str(error)})
            return False
        return True

    async def _until_stopped(self) -> None:
        """Returns when asked to stop; raises when a start failed or something died."""
        stopping = asyncio.create_task(self._stopping.wait(), name="wait for a signal")
        death = asyncio.create_task(self._tasks.closed(), name="watch the components")
        start = asyncio.create_task(self.start(), name="start the components")
        try:
            await asyncio.wait({start, stopping, death}, return_when=asyncio.FIRST_COMPLETED)
            if start.done() and not stopping.done() and not death.done():
                start.result()
                await asyncio.wait({stopping, death}, return_when=asyncio.FIRST_COMPLETED)
            if death.done():
                death.result()
        finally:
            for task in (start, stopping, death):
                task.cancel()
            await asyncio.wait({start, stopping, death})

    def _install_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._on_signal, signum)

    def _on_signal(self, signum: int) -> None:
        if self._stopping.is_set():
            log.warning("second_signal_exits_now", extra={"signal": signal.Signals(signum).name})
            logging.shutdown()
            os._exit(128 + signum)
        log.info("draining", extra={"signal": signal.Signals(signum).name, "drain_s": self._drain_s})
        self.request_stop()


async def _watch(name: str, component: Watched) -> None:
    await component.closed()
    raise TaskDied(name, "it closed by itself")
