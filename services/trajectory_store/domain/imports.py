"""What a client says that it played."""

from dataclasses import dataclass
from typing import Final

from episodes import EpisodeIdentity
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody

NO_VERSION: Final = -1
"""Of text that no version of a model here sampled."""


@dataclass(frozen=True, slots=True)
class ClientEpisode:
    """One episode of an import. subscores: as in `TrajectoryGrade`."""

    identity: EpisodeIdentity
    body: TrajectoryBody
    reward: float
    success: bool
    subscores: bytes
