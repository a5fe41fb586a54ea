"""An episode as the sampler plays it: what is asked for, what it may cost, how the sampler's part ends."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from blob_store import BlobRef
from episodes import Channel, EpisodeIdentity
from upcycle.api.common.v1.common_pb2 import Usage
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody
from upcycle.run_config import Sampling

_SEED_SPACE: Final = 2**31
_SEED_STRIDE: Final = 1_000_003
_TURN_STRIDE: Final = 8191


@dataclass(frozen=True, slots=True)
class PolicyWanted:
    """Which weights: a channel of a model, or exactly one version of it."""

    model: str
    channel: Channel = Channel.LATEST
    pinned_version: int | None = None

    def __str__(self) -> str:
        if self.pinned_version is not None:
            return f"{self.model}@v{self.pinned_version}"
        return f"{self.model} on channel {self.channel}"


@dataclass(frozen=True, slots=True)
class EpisodeTask:
    """One episode to be played."""

    identity: EpisodeIdentity
    policy: PolicyWanted
    sampling: Sampling
    seed: int | None
    """Of the episode, which the planner derived from the run's; None: sampled without a seed."""
    deadline: datetime | None
    time_s: float | None = None
    """What the planner waits, at least, for an episode whose environment was opened."""
    failures_are_missing: bool = False
    """In its run, a failure that the policy caused is no 0."""

    def completion_limit(self, num_context_tokens: int) -> int:
        """Tokens that the next completion may have; 0 or less: the episode's budget is spent."""
        limits = self.sampling
        return min(limits.max_tokens_per_turn, limits.max_tokens_per_episode - num_context_tokens)

    def turn_seed(self, turn: int) -> int | None:
        """Seed of a turn's request: equal for every retry of it, another for each turn."""
        return None if self.seed is None else (self.seed * _SEED_STRIDE + turn * _TURN_STRIDE) % _SEED_SPACE


@dataclass(frozen=True, slots=True)
class Recorded:
    """The trajectory is stored, by this sampler or by one that was faster: publish that."""

    body: TrajectoryBody
    ref: BlobRef


@dataclass(frozen=True, slots=True)
class Failed:
    """The episode will have no reward. kind: an EpisodeFailure, or the word that the environment sent."""

    kind: str
    detail: str
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class NotWanted:
    """The planner does not wait for the episode: it is settled, or its run is over."""

    why: str


PlayOutcome = Recorded | Failed | NotWanted
