"""Guidance after failure: which groups are attempted once more, and after which attempt. Pure."""

from collections.abc import Iterable

from episodes import GroupOutcome, GroupReason
from scenario_runner.domain.facts import GroupSettled
from scenario_runner.domain.runs import EpisodeRow, GroupRow, RunRecord, RunState
from upcycle.run_config.names import ON_FAILURE


def wants_guidance(run: RunRecord, group: GroupRow, fact: GroupSettled) -> bool:
    """Whether a run guides after groups that ended so: it taught nothing, and was not guided itself."""
    training = run.spec.training
    if training is None or training.guidance != ON_FAILURE or run.state is not RunState.RUNNING:
        return False
    taught_nothing = fact.outcome == GroupOutcome.EXCLUDED and fact.reason == GroupReason.ZERO_SPREAD
    return taught_nothing and not group.guided_after and _has_share(run, training.guidance_max_share)


def _has_share(run: RunRecord, max_share: float) -> bool:
    """One more keeps within the run's share, itself counted."""
    return run.num_guided + 1 <= max_share * (run.next_position + 1)


def attempt_to_guide_after(members: Iterable[EpisodeRow]) -> EpisodeRow | None:
    """Of a group without a success, the attempt with the highest reward, the first of equal ones:
    one for the whole group, so that its members have one prompt and may be compared. None where somebody
    succeeded, or no attempt was stored."""
    graded = [row for row in members if row.graded_at is not None]
    if any(row.success for row in graded):
        return None
    stored = [row for row in graded if row.body_key]
    return max(stored, key=lambda row: (row.reward, -row.member), default=None)
