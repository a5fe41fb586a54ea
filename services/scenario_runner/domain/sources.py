"""Which groups of evaluations a training run may train on, and why not the others. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from blob_store import BlobRef
from episodes import GroupOutcome, GroupReason, Purpose, Split
from scenario_runner.domain.mixes import tasksets_of
from scenario_runner.domain.runs import EpisodeRow, EpisodeState, RunRecord
from scenario_runner.domain.source_groups import EndedGroup, SourceGroupState, SourceReport, SourceTally
from upcycle.run_config import MAX_TRAINABLE_GROUP, MAX_TRAJECTORIES_PER_STEP
from upcycle.tasks import plain_name


@dataclass(frozen=True, slots=True)
class Offer:
    """A group that a training run may train on, with all that its trainer must know of it. taskset: key of
    the revision that the task is of; empty for recorded sessions."""

    group_id: str
    source_run_id: str
    group_size: int
    taskset: str
    split: Split
    task_digest: str
    is_before_start: bool
    """The evaluation had ended, or the sessions had their rewards, before the training run began."""
    members: Sequence[EpisodeRow]


@dataclass(frozen=True, slots=True)
class DrawRules:
    """What a group must be to be offered to one run. head_version: of a group of a source run, head when the
    training run is submitted; its members must be of one version, which is not newer. Whether a version is
    too old is decided by the trainer alone, which knows the ancestors of the version that it began from."""

    split: Split
    is_same_environment: bool
    group_size: int
    prompts_per_step: int
    head_version: int | None = None


def why_unfit(group: EndedGroup, rules: DrawRules) -> str:
    """Why the group may not train; empty when it may."""
    return next((reason for reason, applies in _reasons(group, rules) if applies), "")


def _reasons(group: EndedGroup, rules: DrawRules) -> Sequence[tuple[str, bool]]:
    size, batch = rules.group_size, rules.group_size * rules.prompts_per_step
    return (
        (GroupReason.HELD_OUT, rules.split.never_trains),
        (GroupReason.UNASSIGNED, rules.split is Split.UNASSIGNED),
        (GroupReason.OTHER_ENVIRONMENT, not rules.is_same_environment),
        (GroupReason.INCOMPLETE_GROUP, group.outcome != "evaluated" or group.num_members < size),
        (GroupReason.GROUP_OF_ONE, size < 2),
        (GroupReason.TOO_LARGE, size > MAX_TRAINABLE_GROUP or batch > MAX_TRAJECTORIES_PER_STEP),
        (GroupReason.NO_TOKENS, group.num_without_body > 0),
        (GroupReason.VERSION, not _is_of_one_known_version(group, rules.head_version)),
        # For online groups the trainer reports this reason: they count as groups that brought no step.
        (GroupReason.ZERO_SPREAD, rules.head_version is not None and not group.has_spread),
    )


def _is_of_one_known_version(group: EndedGroup, head_version: int | None) -> bool:
    return head_version is None or group.oldest == group.newest <= head_version


def ended_group(group: EndedGroup, members: Sequence[EpisodeRow]) -> EndedGroup:
    """The group with what its members (those with a reward) say."""
    return EndedGroup(
        group_id=group.group_id,
        ended_at=group.ended_at,
        outcome=group.outcome,
        num_members=len(members),
        num_without_body=sum(not row.body_key for row in members),
        oldest=min((row.oldest_version for row in members), default=0),
        newest=max((row.newest_version for row in members), default=0),
        has_spread=len({row.reward for row in members}) > 1,
    )


def rewarded(rows: Iterable[EpisodeRow]) -> list[EpisodeRow]:
    """Those of an evaluation's episodes that have a reward, by member."""
    return sorted((row for row in rows if row.state is EpisodeState.EVALUATED), key=lambda row: row.member)


def with_body(row: EpisodeRow, body: BlobRef, stop_reason: int) -> EpisodeRow:
    """The episode with the claim check of its trajectory."""
    return replace(
        row, body_key=body.key, body_sha256=body.sha256, body_size=body.size_bytes, stop_reason=stop_reason
    )


def may_train_on(run: RunRecord, source: RunRecord) -> bool:
    """Whether the groups that an evaluation ends from now on are for the training run."""
    return (
        run.spec.purpose is Purpose.TRAIN
        and source.spec.purpose is Purpose.EVAL
        and source.spec.trainable
        and source.spec.policy.model == run.spec.policy.model
        and source.taskset_name in (run.taskset_name, *map(plain_name, tasksets_of(run.spec)[1:]))
    )


def reports(
    tallies: Iterable[SourceTally], source_runs: Sequence[str], *, is_over: bool
) -> tuple[SourceReport, ...]:
    """One per evaluation: those that the run names first, in its order. is_over: what waits is left out."""
    by_source: dict[str, Counter[tuple[SourceGroupState, str]]] = {name: Counter() for name in source_runs}
    for tally in tallies:
        key = (tally.state, tally.reason)
        if is_over and tally.state is SourceGroupState.WAITING:
            key = (SourceGroupState.LEFT_OUT, GroupReason.RUN_OVER)
        by_source.setdefault(tally.source_run_id, Counter())[key] += tally.count
    online = sorted(name for name in by_source if name not in source_runs)
    return tuple(_report(name, by_source[name]) for name in (*source_runs, *online))


def _report(run_id: str, counted: Counter[tuple[SourceGroupState, str]]) -> SourceReport:
    by_state: Counter[SourceGroupState] = Counter()
    left_out: Counter[str] = Counter()
    for (state, reason), count in counted.items():
        by_state[state] += count
        if state in (SourceGroupState.LEFT_OUT, SourceGroupState.RELEASED):
            left_out[reason] += count
    return SourceReport(
        run_id=run_id,
        groups=counted.total(),
        offered=by_state[SourceGroupState.OFFERED],
        trained=by_state[SourceGroupState.TRAINED],
        waiting=by_state[SourceGroupState.WAITING],
        left_out=dict(left_out),
    )


def outcomes(tallies: Iterable[SourceTally]) -> dict[str, int]:
    """Offered groups that are settled, by how: `trained`, `released(zero_spread)`."""
    counted: Counter[str] = Counter()
    for tally in tallies:
        if tally.state is SourceGroupState.TRAINED:
            counted[GroupOutcome.TRAINED] += tally.count
        elif tally.state is SourceGroupState.RELEASED:
            counted[f"{GroupOutcome.RELEASED}({tally.reason})"] += tally.count
    return dict(counted)


def in_words(counts: Mapping[str, int]) -> str:
    """`3 stale, 1 split`, most first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {reason}" for reason, count in ordered) or "none"
