"""The promotion gate: may the candidate replace head, judged on paired held-out evidence.

Passes when (1) pooled over all tasks the candidate's lower bound exceeds `min_gain` and the exact test
agrees, and (2) in every task family the lower bound is at least `-regression_margin`. The second claim needs
all families to pass, so each is tested at the full alpha and the claim still has size alpha (an
intersection-union test, Berger 1982); splitting alpha over families would only cost power.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from checkpoint_registry.domain.evidence import Evidence, Tally
from upcycle.statistics.paired import (
    PairedTask,
    bootstrap_lower,
    exact_p_value,
    newcombe_lower,
    sample_needed,
)
from upcycle.wording import amount

SMALL_FAMILIES = "(small families)"


@dataclass(frozen=True, slots=True)
class GateRule:
    """What a candidate must show; confidence is one-sided, margin and gain are success-rate differences."""

    confidence: float = 0.95
    regression_margin: float = 0.05
    min_gain: float = 0.0
    min_family_tasks: int = 8
    bootstrap_reps: int = 4000

    @property
    def alpha(self) -> float:
        """Accepted chance of a wrong promotion."""
        return 1 - self.confidence


@dataclass(frozen=True, slots=True)
class FamilyVerdict:
    """One family's part of the judgement."""

    family: str
    num_tasks: int
    candidate_rate: float
    head_rate: float
    lower_bound: float
    passed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement, with the numbers it rests on."""

    passed: bool
    reason: str
    num_tasks: int
    candidate_rate: float
    head_rate: float
    pooled_lower_bound: float
    newcombe_lower_bound: float
    exact_p_value: float
    families: tuple[FamilyVerdict, ...]


def judge(candidate: Evidence, head: Evidence, rule: GateRule) -> Verdict:
    """Decides on the tasks that head was graded on; where an attempt of the candidate is missing, it failed.
    Equal evidence, equal verdict, to the last bit."""
    pairs = pair_by_task(_missing_as_failed(candidate, head), head)
    if len(pairs) < 2:
        reason = f"held: only {len(pairs)} task(s) were graded for both versions; at least 2 are needed"
        return Verdict(False, reason, len(pairs), 0.0, 0.0, -1.0, -1.0, 1.0, ())
    seed = _seed(candidate.checkpoint_id, head.checkpoint_id)
    differences = [pair.difference for pair in pairs]
    pooled = bootstrap_lower(differences, rule.alpha, seed=seed, reps=rule.bootstrap_reps)
    p_value = exact_p_value(pairs)
    families = _judge_families(pairs, rule, seed)
    gained = pooled > rule.min_gain and p_value <= rule.alpha
    failed = [family for family in families if not family.passed]
    return Verdict(
        passed=gained and not failed,
        reason=_reason(pairs, rule, pooled, p_value, failed),
        num_tasks=len(pairs),
        candidate_rate=_mean([pair.candidate_rate for pair in pairs]),
        head_rate=_mean([pair.head_rate for pair in pairs]),
        pooled_lower_bound=pooled,
        newcombe_lower_bound=newcombe_lower(pairs, rule.alpha),
        exact_p_value=p_value,
        families=families,
    )


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


def _missing_as_failed(candidate: Evidence, head: Evidence) -> Evidence:
    """The candidate's evidence with a failed attempt for each that is missing and that head has: a version
    that is not graded where it would lose gains nothing by it."""
    tallies = dict(candidate.tallies)
    for slug, other in head.tallies.items():
        mine = tallies.get(slug, Tally(other.family, 0, 0, missing=other.attempts))
        num_failed = min(mine.missing, max(0, other.attempts - mine.attempts))
        tallies[slug] = replace(mine, attempts=mine.attempts + num_failed)
    return replace(candidate, tallies=tallies)


def _missing_as_before(now: Evidence, before: Evidence) -> Evidence:
    """The evidence with the earlier version's attempts at each task on which there is none: what was lost to
    infrastructure neither moves head back nor leaves the tasks that were graded to stand for all."""
    graded = {slug: tally for slug, tally in now.tallies.items() if tally.attempts}
    return replace(now, tallies={**before.tallies, **graded})


def _judge_families(pairs: Sequence[PairedTask], rule: GateRule, seed: int) -> tuple[FamilyVerdict, ...]:
    groups = _families(pairs, rule.min_family_tasks)
    return tuple(_judge_family(name, group, rule, seed) for name, group in groups.items())


def _families(pairs: Sequence[PairedTask], min_tasks: int) -> dict[str, list[PairedTask]]:
    """Tasks by family; families too small to resample are judged together, against one budget."""
    by_name: dict[str, list[PairedTask]] = {}
    for pair in pairs:
        by_name.setdefault(pair.family, []).append(pair)
    groups = {name: group for name, group in sorted(by_name.items()) if len(group) >= min_tasks}
    small = [pair for name, group in sorted(by_name.items()) if len(group) < min_tasks for pair in group]
    if small:
        groups[SMALL_FAMILIES] = small
    return groups


def _judge_family(name: str, pairs: Sequence[PairedTask], rule: GateRule, seed: int) -> FamilyVerdict:
    differences = [pair.difference for pair in pairs]
    lower = bootstrap_lower(differences, rule.alpha, seed=seed, reps=rule.bootstrap_reps)
    passed = lower >= -rule.regression_margin
    candidate, head = _mean([p.candidate_rate for p in pairs]), _mean([p.head_rate for p in pairs])
    reason = "" if passed else _family_reason(name, pairs, rule, lower)
    return FamilyVerdict(name, len(pairs), candidate, head, lower, passed, reason)


def _family_reason(name: str, pairs: Sequence[PairedTask], rule: GateRule, lower: float) -> str:
    margin = rule.regression_margin
    mean = _mean([pair.difference for pair in pairs])
    if mean < -margin:
        return f"family {name!r} lost {-mean:.1%}, more than its budget of {margin:.1%}"
    needed = sample_needed(pairs, -margin, rule.alpha)
    return (
        f"family {name!r} may have lost {-lower:.1%} (measured {mean:+.1%} on {amount(len(pairs), 'task')}), "
        f"its budget is {margin:.1%}; {_more(needed.tasks, needed.attempts)}"
    )


def _reason(
    pairs: Sequence[PairedTask], rule: GateRule, pooled: float, p_value: float, failed: list[FamilyVerdict]
) -> str:
    candidate = _mean([pair.candidate_rate for pair in pairs])
    head = _mean([pair.head_rate for pair in pairs])
    rates = (
        f"success {head:.1%} -> {candidate:.1%} on {amount(len(pairs), 'task')}, lower bound {pooled:+.1%}"
    )
    problems = []
    if pooled <= rule.min_gain or p_value > rule.alpha:
        problems.append(_gain_problem(pairs, rule, p_value))
    problems += [family.reason for family in failed]
    if not problems:
        return f"promoted: {rates}, exact p {p_value:.2g}, no family beyond its budget"
    return f"held: {rates}; " + "; ".join(problems)


def _gain_problem(pairs: Sequence[PairedTask], rule: GateRule, p_value: float) -> str:
    wanted = f"a gain above {rule.min_gain:.1%} is not shown at {rule.confidence:.0%} (exact p {p_value:.2g})"
    if _mean([pair.difference for pair in pairs]) <= rule.min_gain:
        return wanted
    needed = sample_needed(pairs, rule.min_gain, rule.alpha)
    return f"{wanted}; {_more(needed.tasks, needed.attempts)}"


def _more(tasks: int | None, attempts: int | None) -> str:
    options = []
    if tasks is not None:
        options.append(f"about {tasks} tasks")
    if attempts is not None:
        options.append(f"{attempts} attempts per task")
    if not options:
        return "more evidence is unlikely to change it"
    return "would take " + " or ".join(options) + " at this effect"


def _seed(first: str, second: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{first}\n{second}".encode()).digest()[:8], "big")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
