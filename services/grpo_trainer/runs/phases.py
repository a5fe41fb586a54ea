"""What a session is doing, and when it may begin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum

Turn = Callable[[], Awaitable[None]]
"""Returns when it is the session's turn, see TrainingSession."""


async def at_once() -> None:
    """No other session of the model: nothing to wait for."""


class Phase(StrEnum):
    """What a session is doing."""

    OPENING = "opening"
    WAITING = "waiting"
    STEPPING = "stepping"
    PUBLISHING = "publishing"
    FINISHED = "finished"
    FAILED = "failed"
