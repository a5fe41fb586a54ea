"""Where a reward stands among the scores of a calibration."""

import math
from collections.abc import Sequence

from upcycle.errors import UpcycleError


class AnchorRefused(UpcycleError, ValueError):
    """A reward that no percentile is of, or a calibration that cannot be read."""

    kind = "anchor_refused"


def percentile(reward: float, scores: Sequence[float], where: str = "") -> float:
    """0 to 100: the share of the scores that are lower, and half of those that are equal.

    where: what the reward is of, for the refusal. Raises AnchorRefused for rewards and scores outside 0 to 1,
    which have no common scale, and for no scores.
    """
    for what, value in (("reward", reward), *(("score", one) for one in scores)):
        if not (math.isfinite(value) and 0 <= value <= 1):
            raise AnchorRefused(
                f"{what} {value:g}{f' of {where}' if where else ''} is outside 0 to 1: it has no percentile",
                "only rewards from 0 to 1 are anchored",
            )
    if not scores:
        raise AnchorRefused(f"no score{f' of {where}' if where else ''} to compare with", "record some first")
    lower, equal = (sum(one < reward for one in scores), sum(one == reward for one in scores))
    return 100 * (lower + equal / 2) / len(scores)
