"""A learning rate and a KL weight that follow the success of a run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from grpo_trainer.domain.spec import TrainingSpec

SMOOTHED: Final = "success_smoothed"
"""Metric that remembers the success which rate and weight follow, so that a restart goes on with it."""
_NEWEST: Final = 0.2
"""Weight of the newest step in it: about five steps are remembered, since one has few episodes."""


@dataclass(frozen=True, slots=True)
class Scales:
    """What the learning rate and the KL weight of one step are multiplied by."""

    rate: float = 1.0
    kl: float = 1.0


UNSCALED: Final = Scales()


def scales(spec: TrainingSpec, before: Mapping[str, float]) -> Scales:
    """Of the next step. before: all metrics of the step before, so a step that is taken again after a crash
    has the same; the first step is not scaled."""
    success = before.get(SMOOTHED, 0.0)
    return Scales(1.0 - spec.lr_success_decay * success, 1.0 + spec.kl_success_growth * success)


def following_metrics(
    spec: TrainingSpec, before: Mapping[str, float], success: float | None
) -> dict[str, float]:
    """What a step remembers. success: share of all episodes that ended since the step before; None where none
    did, which changes nothing."""
    if not (spec.lr_success_decay or spec.kl_success_growth):
        return {}
    known = before.get(SMOOTHED)
    if success is None:
        return {} if known is None else {SMOOTHED: known}
    return {SMOOTHED: success if known is None else (1.0 - _NEWEST) * known + _NEWEST * success}
