"""The best head so far of each family, so that losses below the margin do not add up over promotions."""

from collections.abc import Mapping
from dataclasses import dataclass

from upcycle.gate.outcomes import TaskCount


@dataclass(frozen=True, slots=True)
class Baseline:
    """The best head so far of a family: what it did as head, by task. Never the evidence that selected it."""

    checkpoint: str
    tallies: Mapping[str, TaskCount]
