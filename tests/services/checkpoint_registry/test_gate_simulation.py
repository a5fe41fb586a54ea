"""Operating characteristics by simulation: how often the gate is wrong, and how often it is right."""

import math
import random

import pytest

from checkpoint_registry.domain.evidence import Evidence, Tally
from checkpoint_registry.domain.gate import GateRule, judge

TRIALS = 120
RULE = GateRule(bootstrap_reps=150)


def draw(
    rng: random.Random, *, tasks: int, attempts: int, mean_logit: float, gain: dict[int, float], families: int
) -> tuple[Evidence, Evidence]:
    """Tasks of varying difficulty; the candidate's success probability is head's plus its family's gain."""
    candidate, head = {}, {}
    for index in range(tasks):
        family = index % families
        p = 1 / (1 + math.exp(-rng.gauss(mean_logit, 1.2)))
        q = min(1.0, max(0.0, p + gain[family]))
        slug, name = f"t{index}", f"family-{family}"
        candidate[slug] = Tally(name, sum(rng.random() < q for _ in range(attempts)), attempts)
        head[slug] = Tally(name, sum(rng.random() < p for _ in range(attempts)), attempts)
    return Evidence("c", ("r",), tasks, candidate), Evidence("h", ("s",), tasks, head)


def promoted(seed: int, gains: dict[int, float], *, mean_logit: float = 0.0, tasks: int = 120) -> float:
    rng = random.Random(seed)
    passed = 0
    for _ in range(TRIALS):
        candidate, head = draw(
            rng, tasks=tasks, attempts=2, mean_logit=mean_logit, gain=gains, families=len(gains)
        )
        passed += judge(candidate, head, RULE).passed
    return passed / TRIALS


def at_most(alpha: float) -> float:
    """The rate that a test of true size alpha exceeds in one of a thousand such simulations."""
    return alpha + 3.1 * math.sqrt(alpha * (1 - alpha) / TRIALS)


@pytest.mark.parametrize("mean_logit", [-3.0, 0.0, 3.0])
def test_no_change_is_promoted_at_most_alpha_of_the_time(mean_logit: float) -> None:
    assert promoted(1, dict.fromkeys(range(4), 0.0), mean_logit=mean_logit) <= at_most(RULE.alpha)


def test_no_change_on_few_tasks_is_promoted_at_most_alpha_of_the_time() -> None:
    assert promoted(2, {0: 0.0}, tasks=8) <= at_most(RULE.alpha)


def test_a_family_that_lost_twenty_points_is_let_through_at_most_alpha_of_the_time() -> None:
    assert promoted(3, {0: -0.2, 1: 0.3, 2: 0.3, 3: 0.3}) <= at_most(RULE.alpha)


def test_a_large_gain_is_promoted_nearly_always() -> None:
    assert promoted(4, dict.fromkeys(range(4), 0.4), mean_logit=-1.0) >= 0.95
