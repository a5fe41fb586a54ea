"""The shape of everything a Service starts and stops."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class TaskDied(Exception):
    """Something that must live as long as the process ended by itself; `name` says what."""

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
        """Finish what is in flight and let go. Called once, also after a failed start."""

    def ready(self) -> str | None:
        """None when it can do its work now, else the reason why not. Must not block."""


@runtime_checkable
class Watched(Protocol):
    """A component that can die by itself."""

    async def closed(self) -> None:
        """Return, or raise the cause, only when the component has died without being stopped."""


class Lifecycle(Protocol):
    """What libraries offer: started, stopped and ready or not, without a name or a reason."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def ready(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Adapted:
    name: str
    start: Callable[[], Awaitable[None]]
    stop: Callable[[], Awaitable[None]]
    ready: Callable[[], str | None]


def as_component(name: str, lifecycle: Lifecycle, *, why_not_ready: str = "not connected") -> Component:
    """Give a lifecycle a name, and its False a reason: `as_component("bus", event_bus)`."""

    async def start() -> None:
        await lifecycle.start()

    async def stop() -> None:
        await lifecycle.stop()

    return _Adapted(name, start, stop, lambda: None if lifecycle.ready() else why_not_ready)  # type: ignore[return-value]
