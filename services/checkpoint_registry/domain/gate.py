"""Whether head lost against the head before it, by evaluations that somebody asked for."""

import hashlib
from dataclasses import replace

from checkpoint_registry.domain.evidence import Evidence
from upcycle.statistics.paired import PairedTask, bootstrap_lower, exact_p_value


def is_significantly_worse(now: Evidence, before: Evidence, confidence: float, *, reps: int = 4000) -> bool:
    """Whether `now` lost against `before` beyond chance: bound and exact test must both say so.

    A task that `now` was not graded on counts as no change: an evaluation of a few tasks says little of all.
    """
    if len(pair_by_task(before, now)) < 2:
        return False
    pairs = pair_by_task(before, _missing_as_before(now, before))
    seed = _seed(before.checkpoint_id, now.checkpoint_id)
    lower = bootstrap_lower([pair.difference for pair in pairs], 1 - confidence, seed=seed, reps=reps)
    return lower > 0 and exact_p_value(pairs) <= 1 - confidence


def pair_by_task(candidate: Evidence, head: Evidence) -> list[PairedTask]:
    """Tasks graded for both, ordered by slug so that the seeded resampling repeats."""
    slugs = sorted(candidate.tallies.keys() & head.tallies.keys())
    pairs = []
    for slug in slugs:
        mine, other = candidate.tallies[slug], head.tallies[slug]
        if mine.attempts and other.attempts:
            pairs.append(
                PairedTask(mine.family, mine.successes, mine.attempts, other.successes, other.attempts)
            )
    return pairs


def _missing_as_before(now: Evidence, before: Evidence) -> Evidence:
    """The evidence with the earlier version's attempts at each task on which there is none: what was lost to
    infrastructure neither moves head back nor leaves the tasks that were graded to stand for all."""
    graded = {slug: tally for slug, tally in now.tallies.items() if tally.attempts}
    return replace(now, tallies={**before.tallies, **graded})


def _seed(first: str, second: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{first}\n{second}".encode()).digest()[:8], "big")
