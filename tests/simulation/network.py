"""The network between processes and their servers: it delays, loses, repeats and cuts, as the seed says."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tests.simulation.virtual_time import SimulatedProcess, VirtualLoop, running_process

T = TypeVar("T")
_FAST_S: Final = 0.002
_SLOW_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad the network of a history is. Each is a probability per message.

    slow: it takes up to 3 s instead of 2 ms. lost: a request or its answer never arrives. repeated: a request
    that has no answer to wait for arrives twice. forgotten: the stream of facts loses the end of a group, a
    step, a session or a run before anybody reads it.
    """

    slow: float = 0.0
    lost: float = 0.0
    repeated: float = 0.0
    forgotten: float = 0.0


class SimulatedNetwork:
    """Every call of a server goes through `request`, every message without an answer through `send`."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, weather: Weather) -> None:
        self._loop = loop
        self._rng = rng
        self.weather = weather
        self._cut: set[tuple[str, str]] = set()

    def cut(self, service: str, server: str) -> None:
        """From now on nothing passes between a service and a server."""
        self._cut.add((service, server))

    def heal(self, service: str, server: str) -> None:
        """It passes again."""
        self._cut.discard((service, server))

    def heal_all(self) -> None:
        """Everything passes again."""
        self._cut.clear()

    async def request(
        self, server: str, serve: Callable[[], T], *, timeout_s: float, lost: Callable[[], Exception]
    ) -> T:
        """Have a server do something, once, and return its answer. A caller that raises `lost` does not know
        whether it was done."""
        return await self.conversation(server, _at_once(serve), timeout_s=timeout_s, lost=lost)

    async def conversation(
        self, server: str, serve: Coroutine[Any, Any, T], *, timeout_s: float, lost: Callable[[], Exception]
    ) -> T:
        """The same for a server that takes its time."""
        try:
            await self._hop(server, timeout_s, lost)
            answer = await serve
        finally:
            serve.close()
        # Half of the answers arrive in the step that asked: each hop costs time, and no fault needs them all.
        if self._rng.random() < 0.5 or self.weather.lost or self._cut:
            await self._hop(server, timeout_s, lost)
        return answer

    def send(self, server: str, serve: Callable[[], object]) -> None:
        """Tell a server something. The sender may be dead when it arrives."""
        if self._is_lost(server):
            return
        self._loop.later(self._delay_s(), serve)
        if self._rng.random() < self.weather.repeated:
            self._loop.later(self._delay_s(), serve)

    async def _hop(self, server: str, timeout_s: float, lost: Callable[[], Exception]) -> None:
        if self._is_lost(server):
            await asyncio.sleep(timeout_s)
            raise lost()
        await asyncio.sleep(self._delay_s())

    def _is_lost(self, server: str) -> bool:
        if self._cut and _link(running_process(), server) in self._cut:
            return True
        return self.weather.lost > 0 and self._rng.random() < self.weather.lost

    def _delay_s(self) -> float:
        if self.weather.slow and self._rng.random() < self.weather.slow:
            return self._rng.random() * _SLOW_S
        return self._rng.random() * _FAST_S


def _link(process: SimulatedProcess | None, server: str) -> tuple[str, str]:
    return (f"{process.service}/{process.replica}" if process else "", server)


async def _at_once(serve: Callable[[], T]) -> T:
    return serve()
