"""What the use cases need from an engine's answer and from the clock; tests bring their own of both."""

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Protocol

Clock = Callable[[], datetime]


class EngineReply(Protocol):
    """An answer of which the head has arrived."""

    @property
    def status(self) -> int: ...

    async def read(self) -> bytes:
        """All of it. Raises EngineLost."""

    def chunks(self) -> AsyncIterator[bytes]:
        """As it arrives. Raises EngineLost."""

    def close(self) -> None:
        """Gives up; the engine sees a disconnect and aborts."""
