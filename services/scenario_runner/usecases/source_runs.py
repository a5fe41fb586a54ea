"""The evaluations that a training run names as its first batches: checked and taken at its submission."""

from collections import Counter
from dataclasses import replace

from episodes import GroupReason, Purpose, Split
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.runs import FINAL_RUN_STATES, NotFound, Refused, RunRecord
from scenario_runner.domain.source_groups import SourceGroup, SourceGroupState
from scenario_runner.domain.sources import in_words, why_unfit
from scenario_runner.usecases.offering import rules_for
from upcycle.run_config import RunSpec


def take_sources(unit: PlanUnit, run: RunRecord, head_version: int) -> None:
    """Look at every group of the run's sources: what fits waits to be offered, the rest is left out by name.

    head_version: where the run starts. Raises NotFound, Refused.
    """
    for source_run_id in run.spec.source_runs:
        source = check_source(unit, run.spec, source_run_id)
        candidates = _candidates(unit, run, source, head_version)
        if not any(candidate.state is SourceGroupState.WAITING for candidate in candidates):
            raise Refused(_nothing_fits(unit, run, source, candidates, head_version))
        unit.source_groups.add(candidates)


def check_source(unit: PlanUnit, spec: RunSpec, source_run_id: str) -> RunRecord:
    """A finished evaluation of the model on a train-split taskset. Raises NotFound, Refused."""
    source = unit.source_groups.source_run(source_run_id)
    if source is None:
        model = spec.policy.model
        known = [run.run_id for run in unit.runs(50, model) if run.spec.purpose is Purpose.EVAL][:3]
        raise NotFound(
            f"source run {source_run_id!r:.80} does not exist; the newest evaluations of {model!r} are "
            f"{', '.join(known) or 'none'}"
        )
    if source.spec.purpose is not Purpose.EVAL:
        raise Refused(
            f"source run {source_run_id} is a training run, and its episodes are its own; name an evaluation"
        )
    if source.spec.policy.model != spec.policy.model:
        raise Refused(
            f"source run {source_run_id} is of model {source.spec.policy.model!r}, and this run trains "
            f"{spec.policy.model!r}: log-probabilities of another model do not train it; "
            f"evaluate {spec.policy.model!r}"
        )
    if source.state not in FINAL_RUN_STATES:
        raise Refused(
            f"source run {source_run_id} is {source.state.value}, not finished; wait for it, or submit "
            "evaluations with trainable, whose groups a running training run draws"
        )
    released_at = unit.source_groups.released_at(source_run_id)
    if released_at is not None:
        raise Refused(
            f"source run {source_run_id} was released to retention at {released_at:%Y-%m-%d %H:%M} UTC: its "
            f"trajectories may be gone; evaluate {spec.policy.model!r} again and name that run"
        )
    _check_split(unit, source)
    return source


def _check_split(unit: PlanUnit, source: RunRecord) -> None:
    taskset = source.spec.taskset
    if source.split.never_trains:
        what = "held out" if source.split is Split.HELD_OUT else "for audits"
        raise Refused(
            f"source run {source.run_id} played taskset {taskset!r}, which is {what}: it never trains; "
            "evaluate a taskset of split train"
        )
    splits = set(unit.source_groups.splits_of_source(source.run_id).values())
    if splits and Split.TRAIN not in splits:
        way_out = (
            "held out, and never train; evaluate other tasks"
            if all(split.never_trains for split in splits)
            else "in no taskset of split train; register them in one"
        )
        raise Refused(f"source run {source.run_id} played taskset {taskset!r}, whose tasks are {way_out}")


def _candidates(unit: PlanUnit, run: RunRecord, source: RunRecord, head_version: int) -> list[SourceGroup]:
    splits = unit.source_groups.splits_of_source(source.run_id)
    of_split = {
        split: replace(rules_for(unit, run, source, split), head_version=head_version)
        for split in set(splits.values())
    }
    taken = unit.source_groups.taken_of_source(source.run_id)
    candidates = []
    for group in unit.source_groups.ended_groups(source.run_id):
        reason = (
            GroupReason.ALREADY_TRAINED
            if group.group_id in taken
            else why_unfit(group, of_split[splits[group.group_id]])
        )
        state = SourceGroupState.LEFT_OUT if reason else SourceGroupState.WAITING
        settled_at = unit.now if reason else None
        candidates.append(
            SourceGroup(
                group.group_id,
                run.run_id,
                source.run_id,
                state,
                group.ended_at,
                reason=reason,
                settled_at=settled_at,
            )
        )
    return candidates


def _nothing_fits(
    unit: PlanUnit, run: RunRecord, source: RunRecord, candidates: list[SourceGroup], head_version: int
) -> str:
    if not candidates:
        return f"source run {source.run_id} has no group that ended; evaluate the taskset again"
    counts = Counter(candidate.reason for candidate in candidates)
    text = f"source run {source.run_id} has no group to train on: of {len(candidates)}, {in_words(counts)}"
    if counts[GroupReason.ALREADY_TRAINED]:
        runs = sorted(set(unit.source_groups.taken_of_source(source.run_id).values()))
        text += f"; already trained by {', '.join(runs)}, and a group trains once"
    if counts[GroupReason.VERSION]:
        text += (
            f"; a group of one version trains, and of none newer than head, which is version {head_version}"
        )
    return f"{text}; evaluate {run.spec.policy.model!r} as it is now and name that run"
