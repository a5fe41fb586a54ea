"""Alarms: what the measurements of a run warn of. Pure.

The state of an alarm is stored among the metrics of each step, so a restart or a replay changes no alarm.
Bounds are those under which runs were seen to fail (sustained mismatch) or to have failed (collapse, no end
of sequence); an alarm goes away with the first update whose condition does not hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class AlarmKind(StrEnum):
    """What is wrong. Names are an interface."""

    MISMATCH_KL = "mismatch_kl"
    ENTROPY_COLLAPSE = "entropy_collapse"
    NO_EOS = "no_eos"
    UNREADABLE = "unreadable"
    AGE = "age"


@dataclass(frozen=True, slots=True)
class AlarmLimits:
    """updates: in a row, or averaged over, before an alarm is raised. mismatch_kl: k3 of sampler to trainer,
    nats per token.
    entropy_share: of the entropy that the run's decisions had in its first step. no_eos:
    share of trajectories that a token budget cut off.
    """

    updates: int = 8
    mismatch_kl: float = 0.1
    entropy_share: float = 0.05
    no_eos: float = 0.05
    unreadable: float = 0.1
    age: float = 2.0


DEFAULT_LIMITS: Final = AlarmLimits()


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
    pace: int,
    limits: AlarmLimits = DEFAULT_LIMITS,
) -> dict[str, float]:
    """What to add to the metrics of step `step`. before: all metrics of the step before, empty for the first;
    now: what this step measured. pace: versions that sampling runs ahead, and one. `alarm_<kind>` is the step
    at which the alarm was raised, 0 while it is not.
    """
    kl, entropy = now.get("mismatch_kl", 0.0), now.get("decision_entropy")
    window = min(step, limits.updates)
    age_limit = limits.age * pace
    memory = {
        "mismatch_kl_streak": _streak(before, "mismatch_kl_streak", holds=kl > limits.mismatch_kl),
        "no_eos_mean": _mean(before, "no_eos_mean", now.get("no_eos_fraction", 0.0), window),
        "unreadable_mean": _mean(before, "unreadable_mean", now.get("unreadable_fraction", 0.0), window),
        "age_limit": age_limit,
        "age_streak": _streak(before, "age_streak", holds=now.get("staleness_mean", 0.0) > age_limit),
    }
    if entropy is not None:
        start = before.get("decision_entropy_start", entropy)
        memory["decision_entropy_start"] = start
        is_low = entropy < limits.entropy_share * start
        memory["entropy_low_streak"] = _streak(before, "entropy_low_streak", holds=is_low)
    holds = {
        AlarmKind.MISMATCH_KL: memory["mismatch_kl_streak"] >= limits.updates,
        AlarmKind.ENTROPY_COLLAPSE: memory.get("entropy_low_streak", 0.0) >= limits.updates,
        AlarmKind.NO_EOS: step >= limits.updates and memory["no_eos_mean"] > limits.no_eos,
        AlarmKind.UNREADABLE: step >= limits.updates and memory["unreadable_mean"] > limits.unreadable,
        AlarmKind.AGE: memory["age_streak"] >= limits.updates,
    }
    raised = {kind: before.get(_since(kind), 0.0) or float(step) for kind in holds}
    return memory | {_since(kind): raised[kind] if is_on else 0.0 for kind, is_on in holds.items()}


def alarms_of(metrics: Mapping[str, float], limits: AlarmLimits = DEFAULT_LIMITS) -> tuple[Alarm, ...]:
    """The alarms that the metrics of a step hold, as `watched` completed them; none that other limits raised
    and these would not."""
    return tuple(_alarms(metrics, limits))


def _alarms(metrics: Mapping[str, float], limits: AlarmLimits) -> Iterator[Alarm]:
    for kind, (name, limit, text) in _conditions(metrics, limits).items():
        since, value = int(metrics.get(_since(kind), 0.0)), metrics.get(name, 0.0)
        holds = value < limit if kind is AlarmKind.ENTROPY_COLLAPSE else value > limit
        if since and holds:
            yield Alarm(kind, value, limit, since, text)


def _conditions(metrics: Mapping[str, float], limits: AlarmLimits) -> dict[AlarmKind, tuple[str, float, str]]:
    """Of each kind: the metric that is looked at, its limit, and what is wrong where it is beyond."""

    of = defaultdict(float, metrics).__getitem__
    return {
        AlarmKind.MISMATCH_KL: (
            "mismatch_kl",
            limits.mismatch_kl,
            f"mismatch KL {of('mismatch_kl'):.3g} is above {limits.mismatch_kl:g} for "
            f"{of('mismatch_kl_streak'):.0f} updates: the sampler's policy and the trainer's differ; lower "
            "the staleness or the learning rate",
        ),
        AlarmKind.ENTROPY_COLLAPSE: (
            "decision_entropy",
            limits.entropy_share * of("decision_entropy_start"),
            f"entropy {of('decision_entropy'):.3g} of the least certain fifth of the tokens has been low for "
            f"{of('entropy_low_streak'):.0f} updates, it began at {of('decision_entropy_start'):.3g}: the "
            "policy explores no more; lower the learning rate, or end the run",
        ),
        AlarmKind.NO_EOS: (
            "no_eos_mean",
            limits.no_eos,
            f"{of('no_eos_mean'):.1%} of the trajectories were cut off by a budget of tokens or turns, limit "
            f"{limits.no_eos:.1%}: raise the budget, or see why the policy does not stop",
        ),
        AlarmKind.UNREADABLE: (
            "unreadable_mean",
            limits.unreadable,
            f"{of('unreadable_mean'):.1%} of the turns could not be read, limit {limits.unreadable:.1%}: "
            "see them (upcycle trajectories show), teach the format first (upcycle train --sft), or allow "
            "longer turns",
        ),
        AlarmKind.AGE: (
            "staleness_mean",
            of("age_limit"),
            f"what trains is {of('staleness_mean'):.1f} versions old for {of('age_streak'):.0f} updates, "
            f"more than {of('age_limit'):g}: sampling runs ahead of training by less, so an engine does not "
            "follow new versions (upcycle why names it)",
        ),
    }


def _since(kind: AlarmKind) -> str:
    return f"alarm_{kind.value}"


def _streak(before: Mapping[str, float], name: str, *, holds: bool) -> float:
    return before.get(name, 0.0) + 1.0 if holds else 0.0


def _mean(before: Mapping[str, float], name: str, value: float, window: int) -> float:
    """The mean of the first `window` values, then one that forgets with that time constant."""
    mean = before.get(name, 0.0)
    return mean + (value - mean) / window
