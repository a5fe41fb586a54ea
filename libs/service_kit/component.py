"""The protocol of what a Service starts and stops."""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, runtime_checkable

ALARM: Final = "alarm: "
"""Begins a reason of `ready` that asks for a person while the component does its work all the same: nothing
is mended by a restart, so what supervises processes does not wait for it.
"""


class TaskDied(Exception):
    """A component or task, `name`, ended although it must run as long as the process."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name = name
        self.why = why

    def __str__(self) -> str:
        return f"{self.name} died: {self.why}"


@runtime_checkable
class Component(Protocol):
    """A part of a service with a life of its own."""

    @property
    def name(self) -> str:
        """What logs, readiness and errors call it."""

    async def start(self) -> None:
        """Return once the component does its work; raise when it cannot."""

    async def stop(self) -> None:
        """Finish what is in flight and close. Called once, also after a failed start."""

    def ready(self) -> str | None:
        """None when it can do its work now, else the reason why not. Must not block."""


@runtime_checkable
class Watched(Protocol):
    """A component that can die by itself."""

    async def closed(self) -> None:
        """Return, or raise the cause, only when the component has died without being stopped."""


class Closing:
    """A component that has nothing to start, and something to close when the service stops."""

    def __init__(self, name: str, close: Callable[[], Awaitable[None]]) -> None:
        self.name = name
        self._close = close

    async def start(self) -> None:
        """Nothing is opened before the first use."""

    async def stop(self) -> None:
        """Close it."""
        await self._close()

    def ready(self) -> str | None:
        """Always ready: it opens when it is first used."""
        return None
