"""The best head so far of each family, so that losses below the margin do not add up over promotions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from upcycle.gate.gain import mean_and_error
from upcycle.gate.outcomes import TaskCount


@dataclass(frozen=True, slots=True)
class Baseline:
    """The best head so far of a family: what it did as head, by task. Never the evidence that selected it."""

    checkpoint: str
    tallies: Mapping[str, TaskCount]


@dataclass(frozen=True, slots=True)
class HeadRecord:
    """One head of the model, with all that was played of it as head, beside candidates that were held too.
    tallies, families: by task."""

    checkpoint: str
    tallies: Mapping[str, TaskCount]
    families: Mapping[str, str]


def best_heads(records: Sequence[HeadRecord], head: str) -> dict[str, Baseline]:
    """By family, the best of the earlier heads, where it was better than `head` by more than the standard
    error of their difference: the luckiest of many is not the best.

    records: of the heads of the model on this digest of the held-out set, `head` included once it was
    played as head. Until then the best of the earlier ones stands for all families. Families in which `head`
    is the best are left out.
    """
    own = next((record for record in records if record.checkpoint == head), HeadRecord(head, {}, {}))
    found: dict[str, tuple[float, Baseline]] = {}
    for record in records:
        if record.checkpoint == head:
            continue
        for family in sorted(set(record.families.values())):
            tallies = {t: one for t, one in record.tallies.items() if record.families[t] == family}
            lead = _lead(tallies, own.tallies)
            if lead > 0 and (family not in found or lead > found[family][0]):
                found[family] = lead, Baseline(record.checkpoint, tallies)
    return {family: baseline for family, (_, baseline) in found.items()}


def _lead(tallies: Mapping[str, TaskCount], own: Mapping[str, TaskCount]) -> float:
    """By how much a family's tallies beat those of head for certain: one standard error less than they did.
    Where head was not played, its rate alone."""
    common = [(one.rate, own[task].rate) for task, one in tallies.items() if task in own]
    if not common:
        return sum(one.rate for one in tallies.values()) / len(tallies) if tallies else 0.0
    if len(common) < 2:
        return 0.0
    mean, error = mean_and_error([rate - other for rate, other in common])
    return mean - error
