"""Whether a group tells its members apart in a way that a run trains on. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.trajectories import GradedTrajectory
from upcycle.run_config.names import BY_TURN, LEAVE_OUT


def why_no_signal(spec: TrainingSpec, members: Sequence[GradedTrajectory]) -> str | None:
    """For people, why these members teach the run nothing; None where they do. members: with finite
    rewards."""
    rewards = [member.reward for member in members]
    low, high = min(rewards), max(rewards)
    distinguished = {member.turn_rewards for member in members} if _pays_turns(spec) else set()
    if len(distinguished) > 1:
        return None
    if low == high:
        return f"all {len(rewards)} rewards are {low:g}"
    seen = f"{len(rewards)} rewards from {low:g} to {high:g}"
    if high - low < spec.min_spread:
        return f"{seen} differ by less than min_spread {spec.min_spread:g}"
    if all(leaves_out(spec, member) for member in members):
        return f"a limit of tokens or turns cut off all {len(members)} (cut_off_episodes={LEAVE_OUT})"
    if spec.solved_groups == "skip" and all(member.success for member in members):
        return f"{seen} tell successes apart by something else than success (solved_groups=skip)"
    return None


def leaves_out(spec: TrainingSpec, member: GradedTrajectory) -> bool:
    """Whether its tokens do not train, while its reward is compared with those of its group."""
    return member.cut_off and spec.cut_off_episodes == LEAVE_OUT


def _pays_turns(spec: TrainingSpec) -> bool:
    return spec.turn_credit == BY_TURN and spec.turn_reward_weight > 0
