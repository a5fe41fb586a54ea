"""What a session is doing."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """What a session is doing."""

    OPENING = "opening"
    WAITING = "waiting"
    STEPPING = "stepping"
    PUBLISHING = "publishing"
    FINISHED = "finished"
    FAILED = "failed"
