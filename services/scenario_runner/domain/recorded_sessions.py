"""Recorded sessions of clients as groups that a training run may train on, and why not the others. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from blob_store import BlobRef
from episodes import GroupReason, Split
from identities.entities import offered_sessions_id
from scenario_runner.domain.runs import EpisodeRow, EpisodeState
from upcycle.run_config import MAX_TRAINABLE_GROUP, MAX_TRAJECTORIES_PER_STEP


@dataclass(frozen=True, slots=True)
class GradedSession:
    """A recorded session with its reward. group_id: of the sessions that its reward put it with; its own
    episode id where it named no group. why_no_body: its tokens cannot be used. is_cut: it went on beyond
    what is recorded of a session."""

    episode_id: str
    run_id: str
    group_id: str
    task_digest: str
    split: Split
    reward: float
    success: bool
    oldest_version: int
    newest_version: int
    num_tokens: int
    body: BlobRef
    stop_reason: int
    graded_at: datetime
    why_no_body: str = ""
    is_cut: bool = False


_ANOTHER_MAY_CHANGE = frozenset({GroupReason.NONE, GroupReason.GROUP_OF_ONE, GroupReason.ZERO_SPREAD})
"""Why sessions of a group do not train, as long as no other one joins them."""


@dataclass(frozen=True, slots=True)
class SessionGroup:
    """Sessions of equal group and equal first prompt, in the order of their rewards. group_id: of exactly
    these. reason: why they do not train; empty: they may."""

    group_id: str
    source_run_id: str
    task_digest: str
    members: tuple[GradedSession, ...]
    reason: str = ""

    @property
    def ended_at(self) -> datetime:
        """When the last of them got its reward."""
        return max(member.graded_at for member in self.members)

    def is_gathered(self, group_size: int, since: datetime) -> bool:
        """Whether a run that takes sessions as they come need not wait for others of the group: it has the
        size of the run's groups, or waited since its first reward, or no other one would change it."""
        first = self.members[0]
        is_alone = first.group_id == first.episode_id
        is_decided = is_alone or self.reason not in _ANOTHER_MAY_CHANGE
        return is_decided or len(self.members) >= group_size or first.graded_at <= since

    def rows(self) -> list[EpisodeRow]:
        """As an offer has them."""
        return [_row(self, number, one) for number, one in enumerate(self.members)]


@dataclass(frozen=True, slots=True)
class SessionRules:
    """What sessions must be to train in a run. taken: episodes that a run trains or trained. held_out:
    digests of first prompts that never train. head_version: where the run begins; None: it is under way, and
    its trainer knows which versions are its own. has_batch_baseline: one that is alone in its group trains,
    too."""

    taken: Collection[str]
    held_out: Collection[str]
    prompts_per_step: int
    head_version: int | None = None
    has_batch_baseline: bool = False


def grouped(sessions: Iterable[GradedSession], rules: SessionRules) -> list[SessionGroup]:
    """All sessions, each in exactly one group: those that may train with the others of their group, any
    other one alone, with its reason."""
    alike: dict[tuple[str, str, str], list[GradedSession]] = {}
    found: list[SessionGroup] = []
    for session in sorted(sessions, key=lambda one: (one.graded_at, one.episode_id)):
        if reason := _why_not_at_all(session, rules):
            found.append(replace(_group([session]), reason=reason))
        else:
            key = (session.run_id, session.group_id, session.task_digest)
            alike.setdefault(key, []).append(session)
    for members in alike.values():
        found.append(replace(_group(members), reason=_why_not_together(members, rules)))
    if rules.head_version is not None:
        found = _without_tied_singles(found)
    return sorted(found, key=lambda one: (one.ended_at, one.group_id))


def _without_tied_singles(groups: list[SessionGroup]) -> list[SessionGroup]:
    """Single sessions are compared with one another: where nothing else may train, and all have one reward,
    none of them teaches anything."""
    fit = [group for group in groups if not group.reason]
    rewards = {member.reward for group in fit for member in group.members}
    if any(len(group.members) > 1 for group in fit) or len(rewards) > 1:
        return groups
    return [replace(one, reason=one.reason or GroupReason.ZERO_SPREAD) for one in groups]


def _why_not_at_all(session: GradedSession, rules: SessionRules) -> str:
    newest = rules.head_version
    reasons = (
        (GroupReason.HELD_OUT, session.split.never_trains or session.task_digest in rules.held_out),
        (GroupReason.UNASSIGNED, session.split is Split.UNASSIGNED),
        (GroupReason.ALREADY_TRAINED, session.episode_id in rules.taken),
        (GroupReason.QUARANTINED, bool(session.why_no_body)),
        # Its reward is of more than its tokens.
        (GroupReason.BEYOND_BOUNDS, session.is_cut),
        # Calls that an upstream provider answered have no tokens.
        (GroupReason.NO_TOKENS, session.num_tokens == 0),
        (GroupReason.VERSION, newest is not None and session.newest_version > newest),
    )
    return next((reason for reason, applies in reasons if applies), "")


def _why_not_together(members: list[GradedSession], rules: SessionRules) -> str:
    size = len(members)
    reasons = (
        (GroupReason.GROUP_OF_ONE, size < 2 and not rules.has_batch_baseline),
        (
            GroupReason.TOO_LARGE,
            size > MAX_TRAINABLE_GROUP or size * rules.prompts_per_step > MAX_TRAJECTORIES_PER_STEP,
        ),
        (GroupReason.ZERO_SPREAD, size > 1 and len({member.reward for member in members}) < 2),
    )
    return next((reason for reason, applies in reasons if applies), "")


def _group(members: list[GradedSession]) -> SessionGroup:
    first = members[0]
    group_id = offered_sessions_id(first.group_id, [member.episode_id for member in members])
    return SessionGroup(group_id, first.run_id, first.task_digest, tuple(members))


def _row(group: SessionGroup, number: int, session: GradedSession) -> EpisodeRow:
    return EpisodeRow(
        episode_id=session.episode_id,
        run_id=group.source_run_id,
        group_id=group.group_id,
        member=number,
        attempt=0,
        task_position=0,
        taskset="",
        state=EpisodeState.EVALUATED,
        reward=session.reward,
        success=session.success,
        oldest_version=session.oldest_version,
        newest_version=session.newest_version,
        graded_at=session.graded_at,
        body_key=session.body.key,
        body_sha256=session.body.sha256,
        body_size=session.body.size_bytes,
        stop_reason=session.stop_reason,
        split=Split.TRAIN,
    )


REMEDIES: Mapping[str, str] = {
    GroupReason.UNASSIGNED: "give rewards with split train",
    GroupReason.GROUP_OF_ONE: "give the sessions of one task the same group: sessions with equal group and "
    "equal first prompt are compared; or set single_sessions to batch",
    GroupReason.ZERO_SPREAD: "sessions of a group whose rewards differ teach something",
    GroupReason.NO_TOKENS: "sessions that an upstream provider answered are evaluated, never trained",
    GroupReason.BEYOND_BOUNDS: "sessions within MODEL_GATEWAY_SESSION_MAX_CALLS and _SESSION_MAX_BYTES train",
    GroupReason.VERSION: "sessions of versions up to head train",
    GroupReason.HELD_OUT: "sessions that are held out, or begin as one that is, never train",
    GroupReason.ALREADY_TRAINED: "a session trains once",
}
"""What helps sessions that are left out for a reason."""
