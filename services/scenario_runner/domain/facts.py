"""Facts about runs, groups and episodes that the planner reads from the stream."""

from dataclasses import dataclass

from blob_store import BlobRef


@dataclass(frozen=True, slots=True)
class Graded:
    """Fact: an episode has a reward."""

    episode_id: str
    run_id: str
    reward: float
    success: bool
    num_turns: int
    oldest_version: int
    newest_version: int
    body: BlobRef | None = None
    stop_reason: int = 0
    engine_s: float = 0.0
    environment_s: float = 0.0
    failure: str = ""
    """Of the policy, for which the reward is 0."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Fact: an episode will have no reward."""

    episode_id: str
    run_id: str
    failure: str
    detail: str
    engine_s: float = 0.0
    environment_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupSettled:
    """Fact: the trainer is done with a group. outcome: trained, excluded, or for a group of the evaluation
    source_run_id also released."""

    group_id: str
    run_id: str
    outcome: str
    reason: str
    step: int
    episode_ids: tuple[str, ...]
    source_run_id: str = ""


@dataclass(frozen=True, slots=True)
class Advanced:
    """Fact: the trainer completed a step of a run, or published its version. trainer_s: of all its
    steps so far."""

    run_id: str
    step: int
    version: int
    trainer_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stopping:
    """Fact: the run is to end before its last step. The planner publishes it itself: its position in the
    stream divides the grades that the trainer settles from those that it ignores.

    is_final: the trainer missed its deadline; what it publishes about the run after this is void."""

    run_id: str
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class SessionFailed:
    """Fact: the trainer will not go on with a run."""

    run_id: str
    failure: str
    detail: str


Fact = Graded | Failed | GroupSettled | Advanced | Stopping | SessionFailed
