"""What every service says about an episode in the same words: identity, policy, failures, ends of groups."""

from episodes.endings import ATTRIBUTABLE, MISSING, EpisodeFailure, GroupOutcome, GroupReason, SessionFailure
from episodes.failures import EpisodeBroken, episode_failed, policy_failure
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
    "ATTRIBUTABLE",
    "MISSING",
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
    "policy_failure",
]
