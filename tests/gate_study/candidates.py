"""How often a candidate of a known kind is promoted."""

from collections.abc import Callable

import numpy as np
from tests.gate_study.population import Generator, Population, outcomes_of, played

from upcycle.gate.baseline import HeadRecord, best_heads
from upcycle.gate.decision import Decision, Verdict, decide
from upcycle.gate.outcomes import Outcomes, TaskCount
from upcycle.gate.rule import GateRule
from upcycle.gate.spending import AlphaWealth

RULE = GateRule()


def better_by(
    gain: float,
    *,
    families: int = 4,
    mean: float = 0.5,
    spread: float = 1.5,
    rule: GateRule = RULE,
    level: float = 0.05,
) -> Callable[[Generator], Decision]:
    """A candidate that gained so much, in every family alike."""

    def draw(rng: Generator) -> Decision:
        set_ = Population.drawn(rng, families=families, mean=mean, spread=spread)
        mine = played(rng, set_.changed(rng, gain), rule.cap)
        return decide(outcomes_of(set_.family, mine, played(rng, set_.head(), rule.cap)), rule, level)

    return draw


def one_family_lost(loss: float, *, families: int, mean: float) -> Callable[[Generator], Decision]:
    """A candidate that lost so much in one family and gained 8 points in the others."""

    def draw(rng: Generator) -> Decision:
        set_ = Population.drawn(rng, families=families, mean=mean)
        rates = np.where(set_.family == 0, set_.changed(rng, -loss), set_.changed(rng, 0.08))
        mine, other = played(rng, rates, RULE.cap), played(rng, set_.head(), RULE.cap)
        return decide(outcomes_of(set_.family, mine, other), RULE, 0.05)

    return draw


def crashes(share: float) -> Callable[[Generator], Decision]:
    """A candidate 20 points better that crashes in so many of its attempts: attributable, so 0."""

    def draw(rng: Generator) -> Decision:
        set_ = Population.drawn(rng)
        mine = played(rng, np.clip(set_.head() + 0.2, 0, 0.99), RULE.cap)
        mine *= rng.random(mine.shape) >= share
        return decide(outcomes_of(set_.family, mine, played(rng, set_.head(), RULE.cap)), RULE, 0.05)

    return draw


def hangs(gain: float) -> Callable[[Generator], Decision]:
    """A candidate that gained so much, and hangs at the tenth of the tasks that head solves most often."""

    def draw(rng: Generator) -> Decision:
        set_ = Population.drawn(rng)
        rates = set_.changed(rng, gain)
        rates[np.argsort(-set_.head())[: len(rates) // 10]] = 0
        mine, other = played(rng, rates, RULE.cap), played(rng, set_.head(), RULE.cap)
        return decide(outcomes_of(set_.family, mine, other), RULE, 0.05)

    return draw


def loses_failures(share: float, gain: float) -> Callable[[Generator], Decision]:
    """A candidate whose failed attempts are lost to infrastructure in so many cases, however it came."""

    def draw(rng: Generator) -> Decision:
        set_ = Population.drawn(rng)
        mine = played(rng, set_.changed(rng, gain), RULE.cap)
        lost = (mine == 0) & (rng.random(mine.shape) < share)
        other = played(rng, set_.head(), RULE.cap)
        return decide(outcomes_of(set_.family, mine, other, lost), RULE, 0.05)

    return draw


def run_of_null(num_candidates: int, mean: float) -> Callable[[Generator], bool]:
    """A run whose candidates are as good as head, each played against head anew; True: one was promoted."""

    def draw(rng: Generator) -> bool:
        set_, wealth = Population.drawn(rng, mean=mean), AlphaWealth(RULE.alpha)
        for _ in range(num_candidates):
            mine = played(rng, set_.changed(rng, 0.0), RULE.cap)
            outcomes = outcomes_of(set_.family, mine, played(rng, set_.head(), RULE.cap))
            if decide(outcomes, RULE, wealth.next_level).verdict is Verdict.PROMOTE:
                return True
            wealth = wealth.after(promoted=False)
        return False

    return draw


def levels(num_candidates: int) -> float:
    """The level of a run's candidate of this number, when none before it was promoted."""
    return AlphaWealth(RULE.alpha, tested=num_candidates - 1).next_level


def eroded(rng: Generator, *, families: int, remembers: bool) -> bool:
    """Five candidates, each 6 points lower in one family and 8 higher in the others than the one before:
    whether head ends 12 points lower or more in that family. remembers: the best heads so far are known."""
    set_, records, at, name = Population.drawn(rng, families=families), list[HeadRecord](), 0, "v0"
    head = set_.head()
    for step in range(1, 6):
        worse, better = set_.changed(rng, -0.06 * step, 0.3), set_.changed(rng, 0.08 * step, 0.3)
        rates = np.where(set_.family == 0, worse, better)
        outcomes = outcomes_of(set_.family, played(rng, rates, RULE.cap), played(rng, head, RULE.cap))
        decision = decide(outcomes, RULE, 0.05, best_heads(records, name) if remembers else None)
        if decision.verdict is Verdict.PROMOTE:
            records.append(_as_head(name, outcomes, decision.attempts))
            head, at, name = rates, step, f"v{step}"
    return at >= 2


def _as_head(name: str, outcomes: Outcomes, attempts: int) -> HeadRecord:
    tallies = {
        one.task: TaskCount(sum(y or 0 for y in one.head[:attempts]), attempts) for one in outcomes.tasks
    }
    return HeadRecord(name, tallies, {one.task: one.family for one in outcomes.tasks})
