"""Groups that a training run settled without a step: why, with which rewards, and what may help. Pure."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from episodes import GroupReason
from upcycle.run_config import Training

MAX_EXACT_REWARDS = 5
NUM_BINS = 10
_REMEDIES: Mapping[str, str] = {
    GroupReason.STALE: "see whether the engine follows new versions; or raise stale_after, "
    "or max_staleness for groups of evaluations",
    GroupReason.SHORT_GROUP: "see why their episodes failed",
    GroupReason.HELD_OUT: "train on tasks that are not held out",
    GroupReason.QUARANTINED: "look at the trajectories that were set aside: upcycle trajectories list",
    GroupReason.VERSION: "evaluate the model as it is now, or raise max_staleness",
    GroupReason.TOKENIZER: "evaluate a version that has the tokenizer of the one that the run began from",
    GroupReason.TOO_LARGE: "lower prompts_per_step, or evaluate with smaller groups",
    GroupReason.UNTRAINABLE: "evaluate with a temperature above 0: greedy episodes have nothing to train on",
    GroupReason.INCOMPLETE_GROUP: "see why their episodes failed",
    GroupReason.UNASSIGNED: "register their tasks in a taskset of split train",
}
UNMEASURED = f"left_out({GroupReason.INCOMPLETE_GROUP})"
"""Of groups of proposals in self-play of which too few could be measured."""
_UNPLAYED = "see what became of the run's new tasks: too few proposals could be played"
_STALE = f"excluded({GroupReason.STALE})"
_SOLVED = "harder tasks: these are solved"
_UNSOLVED = (
    "easier tasks, rewards that tell attempts apart, longer turns or episodes, "
    "or demonstrations first (upcycle train --sft)"
)
_ALIKE = "larger groups, a higher temperature, or rewards that tell attempts apart"


@dataclass(frozen=True, slots=True)
class WithoutStep:
    """Groups that the trainer settled since the last completed step without training on them, by outcome,
    and the rewards of their graded episodes: outcome to reward to episodes."""

    groups: Mapping[str, int] = field(default_factory=dict)
    rewards: Mapping[str, Mapping[float, int]] = field(default_factory=dict)

    @property
    def num_groups(self) -> int:
        """All of them."""
        return sum(self.groups.values())


class NoSteps(StrEnum):
    """Why a run makes no step any more."""

    NOTHING_TO_LEARN = "nothing_to_learn"
    TOO_OLD = "too_old"


def why_no_steps(outcomes: Mapping[str, int], training: Training) -> NoSteps | None:
    """None: it may still make one. outcomes: of the groups that were settled since its last step.

    A stale group may well have had a gradient: it says nothing about what there is to learn. So once as many
    were stale as a step takes, the run lacks fresh episodes, whatever the other groups were.
    """
    if max(outcomes.get(_STALE, 0), num_not_stale(outcomes)) < training.max_no_step_groups:
        return None
    return NoSteps.TOO_OLD if lacks_fresh(outcomes, training) else NoSteps.NOTHING_TO_LEARN


def lacks_fresh(outcomes: Mapping[str, int], training: Training) -> bool:
    """Whether as many groups were stale as a step takes."""
    return outcomes.get(_STALE, 0) >= training.prompts_per_step


def num_not_stale(outcomes: Mapping[str, int]) -> int:
    """Groups that were settled without a step for another reason than their age."""
    return sum(outcomes.values()) - outcomes.get(_STALE, 0)


def all_too_old(outcomes: Mapping[str, int], step: int, run_id: str) -> str:
    """Why a run pauses itself whose episodes are too old to train. step: the last one."""
    total, num_stale = sum(outcomes.values()), outcomes.get(_STALE, 0)
    since = f" after step {step}" if step else ""
    return (
        f"paused itself: {total} groups in a row were settled without a step{since}, and {num_stale} of them "
        "were stale: sampled by a version too old to train (stale_after); the "
        f"engine may have refused newer versions (upcycle why {run_id} names it); if it follows, "
        f"{_REMEDIES[GroupReason.STALE]}"
    )


def nothing_to_learn(without: WithoutStep, step: int, num_waiting: int) -> str:
    """Why a run ends that makes no step any more. step: the last one. num_waiting: groups that are graded and
    not settled."""
    since = f" after step {step}" if step else ""
    rewards: Counter[float] = Counter()
    for counted in without.rewards.values():
        rewards.update(counted)
    waiting = f"; groups that are graded and not settled: {num_waiting}" if num_waiting else ""
    return (
        f"nothing to learn: {without.num_groups} groups in a row were settled without a step{since}: "
        f"{', '.join(_outcomes(without))}{waiting}; rewards of {sum(rewards.values())} episodes: "
        f"{histogram(rewards)}; what may help: {remedies(without)}, or a higher no_step_groups"
    )


def alarm(without: WithoutStep, step: int) -> str:
    """The same in one line, for a run that goes on."""
    total = without.num_groups
    since = f"no step since step {step}" if step else "no step yet"
    parts = []
    for outcome, count in _by_count(without):
        if _reason(outcome) == GroupReason.ZERO_SPREAD:
            parts.append(f"{count} of {total} groups had no spread: {_rewards_of(without, outcome)}")
        else:
            parts.append(f"{count} of {total} groups were {outcome}")
    return f"{since}: {'; '.join(parts)}"


def is_worth_an_alarm(num_groups: int, training: Training) -> bool:
    """Whether so many groups in a row brought no step that people should know."""
    return num_groups >= min(training.max_no_step_groups, 2 * training.prompts_per_step)


def remedy_of_left_out(counts: Mapping[str, int]) -> str:
    """What may help a run whose groups of evaluations were left out or released for these reasons; empty
    where nothing is known."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    known = [
        _ALIKE if reason == GroupReason.ZERO_SPREAD else _REMEDIES.get(reason, "") for reason, _ in ordered
    ]
    return "; ".join(dict.fromkeys(remedy for remedy in known if remedy))


def remedies(without: WithoutStep) -> str:
    """What may help, the commonest outcome first."""
    found = []
    for outcome, _ in _by_count(without):
        if outcome == UNMEASURED:
            found.append(_UNPLAYED)
            continue
        reason = _reason(outcome)
        remedy = (
            _remedy_of_no_spread(without, outcome)
            if reason == GroupReason.ZERO_SPREAD
            else _REMEDIES.get(reason)
        )
        found.append(remedy or f"see what {outcome} means in the log of grpo_trainer")
    return "; ".join(dict.fromkeys(found))


def histogram(rewards: Mapping[float, int]) -> str:
    """`0.000 x 500, 1.000 x 12`: each value, if there are few; else ten bins over the observed range, of
    which empty ones are left out."""
    finite = {reward: count for reward, count in sorted(rewards.items()) if math.isfinite(reward)}
    if not finite:
        return "none"
    if len(finite) <= MAX_EXACT_REWARDS:
        return ", ".join(f"{_shown(reward)} x {count}" for reward, count in finite.items())
    low, high = min(finite), max(finite)
    bins: Counter[int] = Counter()
    for reward, count in finite.items():
        bins[min(NUM_BINS - 1, int((reward - low) / (high - low) * NUM_BINS))] += count
    edges = [low + (high - low) * index / NUM_BINS for index in range(NUM_BINS + 1)]
    return ", ".join(
        f"{_shown(edges[index])} to {_shown(edges[index + 1])} x {bins[index]}" for index in sorted(bins)
    )


def _by_count(without: WithoutStep) -> list[tuple[str, int]]:
    return sorted(without.groups.items(), key=lambda item: (-item[1], item[0]))


def _reason(outcome: str) -> str:
    return outcome.partition("(")[2].rstrip(")")


def _outcomes(without: WithoutStep) -> Iterator[str]:
    for outcome, count in _by_count(without):
        if _reason(outcome) == GroupReason.ZERO_SPREAD:
            yield f"{count} had no spread ({_rewards_of(without, outcome)})"
        else:
            yield f"{count} {outcome}"


def _rewards_of(without: WithoutStep, outcome: str) -> str:
    rewards = sorted(without.rewards.get(outcome, {}))
    if not rewards:
        return "their rewards are not known"
    if len(rewards) == 1:
        return f"every reward was {_shown(rewards[0])}"
    return f"equal rewards within each group, from {_shown(rewards[0])} to {_shown(rewards[-1])}"


def _remedy_of_no_spread(without: WithoutStep, outcome: str) -> str:
    rewards = without.rewards.get(outcome, {})
    if len(rewards) != 1:
        return _ALIKE
    return _SOLVED if min(rewards) >= 1.0 else _UNSOLVED


def _shown(reward: float) -> str:
    """With three digits, or with as many as it takes to tell it from others."""
    return f"{reward:.3f}" if abs(reward - round(reward, 3)) < 1e-9 else f"{reward:.6g}"
