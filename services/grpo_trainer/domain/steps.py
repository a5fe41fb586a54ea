"""The record of one optimizer step: enough to publish its events again, with equal content, after a crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from episodes import GroupOutcome, GroupReason
from grpo_trainer.domain.alarms import DEFAULT_LIMITS, AlarmLimits, watched
from grpo_trainer.domain.following import Scales, following_metrics, scales
from grpo_trainer.domain.lengths import NOTHING_BESIDE, Drawn, length_metrics
from grpo_trainer.domain.rewards import fade_metrics
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.trajectories import CompleteGroup, GradedTrajectory, Settlement


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A finished step. version: the one that it produced. staleness: versions -> trajectories."""

    step: int
    version: int
    trajectory_ids: tuple[str, ...]
    metrics: Mapping[str, float]
    completed_at: datetime
    saves_checkpoint: bool
    parent_checkpoint_id: str
    settlements: tuple[Settlement, ...] = ()
    staleness: Mapping[int, int] = field(default_factory=dict)
    traceparent: str = ""
    is_final: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values for the training state."""
        plain = asdict(self)
        plain["completed_at"] = self.completed_at.isoformat()
        plain["staleness"] = {str(key): value for key, value in self.staleness.items()}
        for settlement in plain["settlements"]:
            if not settlement["source_run_id"]:
                del settlement["source_run_id"]  # a state is read back to the bytes that were written
        return plain

    @property
    def sources(self) -> Counter[str]:
        """Groups that it trained, by the evaluation that they were drawn from."""
        return Counter(one.source_run_id for one in self.settlements if one.source_run_id)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Groups that enter step `step`. version: in training. idle_s: how long the trainer waited for them.
    before: all metrics of the step before, empty for the first. limits: of alarms. drawn: beside
    its groups. success: share of all episodes that ended since the step before; None where none did."""

    spec: TrainingSpec
    step: int
    version: int
    groups: Sequence[CompleteGroup]
    idle_s: float
    parent_checkpoint_id: str
    before: Mapping[str, float] = field(default_factory=dict)
    limits: AlarmLimits = DEFAULT_LIMITS
    drawn: Drawn = NOTHING_BESIDE
    success: float | None = None

    @property
    def scales(self) -> Scales:
        """Of the learning rate and the KL weight of this step."""
        return scales(self.spec, self.before)

    def record(self, learned: Mapping[str, float], *, at: datetime, traceparent: str) -> StepRecord:
        """The record of this step. learned: metrics of the optimizer step."""
        members = [member for group in self.groups for member in group.members]
        staleness = Counter(self.version - member.effective_version for member in members)
        is_final = self.spec.reached(self.step)
        metrics = {**learned, **self._metrics(learned)}
        metrics |= watched(
            self.before, metrics, step=self.step, pace=self.spec.max_staleness + 1, limits=self.limits
        )
        return StepRecord(
            step=self.step,
            version=self.version + 1,
            trajectory_ids=tuple(member.trajectory_id for member in members),
            settlements=tuple(self._trained(group) for group in self.groups),
            metrics=metrics,
            staleness=dict(sorted(staleness.items())),
            completed_at=at,
            traceparent=traceparent,
            saves_checkpoint=is_final or self.step % self.spec.checkpoint_every_steps == 0,
            is_final=is_final,
            parent_checkpoint_id=self.parent_checkpoint_id,
        )

    def _trained(self, group: CompleteGroup) -> Settlement:
        return Settlement(
            group.group_id,
            GroupOutcome.TRAINED,
            GroupReason.NONE,
            group.episode_ids,
            self.step,
            source_run_id=group.source_run_id,
        )

    def _metrics(self, learned: Mapping[str, float]) -> dict[str, float]:
        members = [member for group in self.groups for member in group.members]
        busy_s = learned.get("learner_s", 0.0) + learned.get("stall_s", 0.0)
        ages = [self.version - member.effective_version for member in members]
        counts = self.step > self.spec.max_staleness + 1
        return {
            **fade_metrics(self.spec, self.before, self.step, self.success),
            **following_metrics(self.spec, self.before, self.success),
            **({} if self.success is None else {"success_all": self.success}),
            **length_metrics(self.before, self.groups, self.drawn, counts=counts),
            **_rates(members),
            **self._by_taskset(),
            "staleness_max": float(max(ages)),
            "staleness_mean": sum(ages) / len(ages),
            "no_eos_fraction": sum(member.cut_off for member in members) / len(members),
            "trajectories": float(len(members)),
            **self._single(),
            # Of all steps so far, so that a step that is announced twice counts once.
            "trainer_s": self.before.get("trainer_s", 0.0) + learned.get("rank_s", 0.0),
            "idle_s": self.idle_s,
            "idle_fraction": self.idle_s / max(self.idle_s + busy_s, 1e-9),
        }

    def _single(self) -> dict[str, float]:
        """Of a run that trains sessions without others beside them: how many this step had."""
        if not self.spec.has_batch_baseline:
            return {}
        return {"single_sessions": float(sum(len(group.members) == 1 for group in self.groups))}

    def _by_taskset(self) -> dict[str, float]:
        """Of a run on several tasksets, what each gave: its groups in this step, 0 among them, and reward and
        success of what the policy did by itself."""
        found: dict[str, float] = {}
        for name in self.spec.tasksets:
            groups = [group for group in self.groups if group.members[0].taskset == name]
            own = [member for group in groups for member in group.members if member.is_own]
            found[f"groups:{name}"] = float(len(groups))
            if own:
                found[f"reward_mean:{name}"] = sum(member.reward for member in own) / len(own)
                found[f"success_rate:{name}"] = sum(member.success for member in own) / len(own)
        return found


def _rates(members: Sequence[GradedTrajectory]) -> dict[str, float]:
    """Reward and success of what the policy did by itself; of guided trajectories, and of proposals, only
    where there are no others."""
    guided = [member for member in members if member.guided]
    proposals = [member for member in members if member.proposal]
    counted = [member for member in members if member.is_own] or guided or proposals
    rates = {
        "reward_mean": sum(member.reward for member in counted) / len(counted),
        "success_rate": sum(member.success for member in counted) / len(counted),
    }
    if guided:
        rates["guided_fraction"] = len(guided) / len(members)
        rates["guided_success_rate"] = sum(member.success for member in guided) / len(guided)
        for kind in sorted({kind for member in guided for kind in member.guidance_kinds}):
            by = [member for member in guided if kind in member.guidance_kinds]
            rates[f"guided_fraction:{kind}"] = len(by) / len(members)
            rates[f"guided_success_rate:{kind}"] = sum(member.success for member in by) / len(by)
    if proposals:
        rates["proposal_fraction"] = len(proposals) / len(members)
        rates["proposal_reward_mean"] = sum(member.reward for member in proposals) / len(proposals)
        rates["proposal_valid_rate"] = sum(member.success for member in proposals) / len(proposals)
    return rates
