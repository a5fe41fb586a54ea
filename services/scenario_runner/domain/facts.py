"""Facts about runs, groups and episodes that the planner reads from the stream."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from blob_store import BlobRef
from episodes import GroupOutcome
from identities.entities import group_of_episode, is_recorded_episode, parse_group_id


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
    shadow: bool | None = None
    """Whether its shadow graders confirm success; None: it has none."""
    guidance_kinds: tuple[str, ...] = ()
    """The kinds of its guidance's parts."""


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
    steps so far. episode_ids: all that the step trained, also of evaluations; None where the trainer said it
    when it was asked, and for a version. reward: mean of the step; drift: from the base, where it was
    measured."""

    run_id: str
    step: int
    version: int
    trainer_s: float = 0.0
    episode_ids: tuple[str, ...] | None = None
    reward: float = 0.0
    drift: float | None = None


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


def trained_by(fact: Advanced) -> Iterator[GroupSettled]:
    """The ends of the groups of a step, but of recorded sessions: their ids do not say which group they are
    of."""
    members: dict[str, list[str]] = {}
    for episode in fact.episode_ids or ():
        if is_recorded_episode(episode):
            continue
        members.setdefault(group_of_episode(episode), []).append(episode)
    for group, episodes in members.items():
        numbered = parse_group_id(group)
        source = "" if numbered is None or numbered.run_id == fact.run_id else numbered.run_id
        outcome = GroupOutcome.TRAINED.value
        yield GroupSettled(group, fact.run_id, outcome, "", fact.step, tuple(episodes), source)


def groups_of(fact: Fact) -> Iterable[str]:
    """The groups of the run itself that a fact is about."""
    match fact:
        case Graded() | Failed():
            return (group_of_episode(fact.episode_id),)
        case GroupSettled():
            return () if fact.source_run_id else (fact.group_id,)
        case Advanced():
            return [one.group_id for one in trained_by(fact) if not one.source_run_id]
        case Stopping() | SessionFailed():
            return ()
