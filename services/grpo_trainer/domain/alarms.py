"""Alarms: what the measurements of a run warn of. Pure.

The state of an alarm is stored among the metrics of each step, so a restart or a replay changes no alarm.
Bounds are those under which runs were seen to fail (sustained mismatch) or to have failed (collapse, no end
of sequence); an alarm goes away with the first update whose condition does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class AlarmKind(StrEnum):
    """What is wrong. Names are an interface."""

    MISMATCH_KL = "mismatch_kl"
    ENTROPY_COLLAPSE = "entropy_collapse"
    NO_EOS = "no_eos"


@dataclass(frozen=True, slots=True)
class AlarmLimits:
    """updates: in a row, or averaged over, before an alarm is raised. mismatch_kl: k3 of sampler to trainer,
    nats per token.
    entropy_share: of the run's first entropy, checked during the first `entropy_early` of its steps, and
    during the first ten of a run without a limit; entropy_floor: nats per token, checked always. no_eos:
    share of trajectories that a token budget cut off.
    """

    updates: int = 8
    mismatch_kl: float = 0.1
    entropy_share: float = 0.2
    entropy_early: float = 0.1
    entropy_floor: float = 0.02
    no_eos: float = 0.05


DEFAULT_LIMITS: Final = AlarmLimits()
_EARLY_STEPS: Final = 10
"""Of a run without a limit: a tenth of the 100 steps that a run has by default."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A condition that holds. since_step: the step at which it was raised."""

    kind: AlarmKind
    value: float
    limit: float
    since_step: int
    text: str


def watched(
    before: Mapping[str, float],
    now: Mapping[str, float],
    *,
    step: int,
    target_steps: int,
    limits: AlarmLimits = DEFAULT_LIMITS,
) -> dict[str, float]:
    """What to add to the metrics of step `step`. before: all metrics of the step before, empty for the first;
    now: what this step measured. target_steps: 0 for a run without a limit. `alarm_<kind>` is the step at
    which the alarm was raised, 0 while it is not.
    """
    kl, entropy = now.get("mismatch_kl", 0.0), now.get("entropy")
    cut_off = now.get("no_eos_fraction", 0.0)
    memory = {
        "mismatch_kl_streak": _streak(before, "mismatch_kl_streak", holds=kl > limits.mismatch_kl),
        "no_eos_mean": _mean(before.get("no_eos_mean", 0.0), cut_off, min(step, limits.updates)),
    }
    if entropy is not None:
        start = before.get("entropy_start", entropy)
        is_early = step <= (limits.entropy_early * target_steps if target_steps else _EARLY_STEPS)
        is_low = entropy < limits.entropy_floor or (is_early and entropy < limits.entropy_share * start)
        memory["entropy_start"] = start
        memory["entropy_low_streak"] = _streak(before, "entropy_low_streak", holds=is_low)
    holds = {
        AlarmKind.MISMATCH_KL: memory["mismatch_kl_streak"] >= limits.updates,
        AlarmKind.ENTROPY_COLLAPSE: memory.get("entropy_low_streak", 0.0) >= limits.updates,
        AlarmKind.NO_EOS: step >= limits.updates and memory["no_eos_mean"] > limits.no_eos,
    }
    raised = {kind: before.get(_since(kind), 0.0) or float(step) for kind in holds}
    return memory | {_since(kind): raised[kind] if is_on else 0.0 for kind, is_on in holds.items()}


def alarms_of(metrics: Mapping[str, float], limits: AlarmLimits = DEFAULT_LIMITS) -> tuple[Alarm, ...]:
    """The alarms that the metrics of a step hold, as `watched` completed them; none that other limits raised
    and these would not."""
    return tuple(_alarms(metrics, limits))


def _alarms(metrics: Mapping[str, float], limits: AlarmLimits) -> Iterator[Alarm]:
    since = {kind: int(metrics.get(_since(kind), 0.0)) for kind in AlarmKind}
    if since[AlarmKind.MISMATCH_KL] and metrics["mismatch_kl"] > limits.mismatch_kl:
        value = metrics["mismatch_kl"]
        streak = int(metrics["mismatch_kl_streak"])
        text = (
            f"mismatch KL {value:.3g} is above {limits.mismatch_kl:g} for {streak} updates: "
            "the sampler's policy and the trainer's differ; lower the staleness or the learning rate"
        )
        yield Alarm(AlarmKind.MISMATCH_KL, value, limits.mismatch_kl, since[AlarmKind.MISMATCH_KL], text)
    if since[AlarmKind.ENTROPY_COLLAPSE] and metrics["entropy"] < _lowest(metrics, limits):
        value, start = metrics["entropy"], metrics["entropy_start"]
        streak = int(metrics["entropy_low_streak"])
        text = (
            f"entropy {value:.3g} has been low for {streak} updates, it began at {start:.3g}: "
            "the policy explores no more; lower the learning rate, or end the run"
        )
        limit = _lowest(metrics, limits)
        yield Alarm(AlarmKind.ENTROPY_COLLAPSE, value, limit, since[AlarmKind.ENTROPY_COLLAPSE], text)
    if since[AlarmKind.NO_EOS] and metrics["no_eos_mean"] > limits.no_eos:
        value = metrics["no_eos_mean"]
        text = (
            f"{value:.1%} of the trajectories were cut off by a token budget, limit {limits.no_eos:.1%}: "
            "raise the budget, or see why the policy does not stop"
        )
        yield Alarm(AlarmKind.NO_EOS, value, limits.no_eos, since[AlarmKind.NO_EOS], text)


def _lowest(metrics: Mapping[str, float], limits: AlarmLimits) -> float:
    """Entropy below which a policy may have collapsed."""
    return max(limits.entropy_floor, limits.entropy_share * metrics["entropy_start"])


def _since(kind: AlarmKind) -> str:
    return f"alarm_{kind.value}"


def _streak(before: Mapping[str, float], name: str, *, holds: bool) -> float:
    return before.get(name, 0.0) + 1.0 if holds else 0.0


def _mean(mean: float, value: float, window: int) -> float:
    """The mean of the first `window` values, then one that forgets with that time constant."""
    return mean + (value - mean) / window
