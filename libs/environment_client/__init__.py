"""One client of EnvironmentService, which sampler and grader share."""

from environment_client.client import EnvironmentClient, EnvironmentTimeouts
from environment_client.errors import EpisodeNotPlanned, ReplicaUnreachable
from environment_client.types import JudgeAnswer, JudgeAsked, Lease, OpenedEnvironment

__all__ = [
    "EnvironmentClient",
    "EnvironmentTimeouts",
    "EpisodeNotPlanned",
    "JudgeAnswer",
    "JudgeAsked",
    "Lease",
    "OpenedEnvironment",
    "ReplicaUnreachable",
]
