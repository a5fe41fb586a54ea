"""What a checkpoint must show before it becomes head, and the types of all parts of a run configuration."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import ConfigDict, Strict
from pydantic.dataclasses import dataclass

from upcycle.run_config.limits import MAX_GROUP_SIZE, MAX_REVIEWED, Limit, Text

CONFIG: Final = ConfigDict(extra="forbid", use_attribute_docstrings=True, str_min_length=0)
"""With a limit of length, even of 0, pydantic refuses text that is not UTF-8, which no message can hold."""

Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]


@dataclass(frozen=True, slots=True, config=CONFIG)
class Gate:
    """What a checkpoint must show on held-out tasks before it becomes head."""

    taskset: Annotated[str, Text(1)]
    """held-out taskset on which a checkpoint is compared with head; without a gate nothing is promoted."""
    attempts: Annotated[Whole, Limit(1, MAX_GROUP_SIZE)] = 16
    """most attempts per held-out task, of candidate and of head; the gate looks after 2, 4, 8 and 16."""
    confidence: Annotated[Number, Limit(0.5, 0.999999)] = 0.95
    """1 - the error of the run: the chance that any of its candidates is promoted without a gain."""
    regression_margin: Annotated[Number, Limit(0, 1)] = 0.05
    """largest loss of success rate allowed in a family of tasks, against the best head so far."""
    min_gain: Annotated[Number, Limit(-1, 1)] = 0.0
    """least gain in success rate: the gain's lower bound must exceed it."""
    critical: tuple[str, ...] = ()
    """families that must be proven to keep their margin: FAMILY, FAMILY:MARGIN or FAMILY:MARGIN:ATTEMPTS."""
    require_review: Annotated[Whole, Limit(0, MAX_REVIEWED)] = 0
    """so many of the run's highest-rewarded trajectories a person must have confirmed (upcycle trajectories
    review) before a checkpoint is promoted; 0: none."""
    by_shadow: Flag = False
    """an attempt is a success where all shadow graders (weight 0, a name that begins with `shadow`) say so,
    whatever the reward's grader says; one that has none is missing."""
