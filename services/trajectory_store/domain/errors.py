"""How reading a trajectory fails, beside `upcycle.errors.Unavailable`: one class per reaction."""

from typing import Self


class UnknownTrajectory(Exception):
    """No episode of that id was ever requested, or none with a recorded trajectory."""

    @classmethod
    def named(cls, wanted: str) -> Self:
        """Of an id that a caller gave."""
        return cls(f"no trajectory has the id {wanted!r}; `upcycle trajectories list` names the newest")


class BodyCorrupt(Exception):
    """The stored bytes are missing, are not what the record promised, or are no trajectory."""


class BodyRemoved(Exception):
    """Retention removed the body; the row of the episode says when and why."""


class TrajectoryRemoved(Exception):
    """Retention removed the row of the episode, and its body before it; the counts of its run stay."""


class UnknownAlarm(Exception):
    """The run has no alarm of that kind."""


class AlreadyImported(Exception):
    """A trajectory of that id is stored with other content; nothing of the import was stored."""
