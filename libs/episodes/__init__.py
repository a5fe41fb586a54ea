"""What every service says about an episode in the same words: identity, policy, failures, ends of groups."""

from episodes.endings import EpisodeFailure, GroupOutcome, GroupReason, SessionFailure
from episodes.failures import EpisodeBroken, episode_failed
from episodes.identity import (
    Channel,
    EpisodeIdentity,
    MalformedIdentity,
    Purpose,
    Split,
    identity_from_wire,
    identity_to_wire,
)

__all__ = [
    "Channel",
    "EpisodeBroken",
    "EpisodeFailure",
    "EpisodeIdentity",
    "GroupOutcome",
    "GroupReason",
    "MalformedIdentity",
    "Purpose",
    "SessionFailure",
    "Split",
    "episode_failed",
    "identity_from_wire",
    "identity_to_wire",
]
