"""What passes the gate, what does not, and what the reason says."""

import random
from collections.abc import Mapping

import pytest

from checkpoint_registry.domain.evidence import Evidence, Tally
from checkpoint_registry.domain.gate import SMALL_FAMILIES, GateRule, is_significantly_worse, judge

FAMILIES = ("bad_deploy", "db_down", "pool", "config", "dns")


def evidence(name: str, tallies: Mapping[str, Tally]) -> Evidence:
    return Evidence(name, (f"run-{name}",), len(tallies), tallies)


def sampled(
    name: str, rates: Mapping[str, float], *, tasks: int = 120, attempts: int = 2, seed: int = 0
) -> Evidence:
    """Evidence with the given success rate per family, tasks spread evenly."""
    rng = random.Random(f"{name}/{seed}")
    tallies = {}
    for index in range(tasks):
        family = FAMILIES[index % len(FAMILIES)]
        successes = sum(rng.random() < rates[family] for _ in range(attempts))
        tallies[f"t{index:04d}"] = Tally(family, successes, attempts)
    return evidence(name, tallies)


def flat(rate: float) -> dict[str, float]:
    return dict.fromkeys(FAMILIES, rate)


@pytest.mark.parametrize(("before", "after"), [(0.33, 0.6), (0.33, 0.85), (0.55, 0.88), (0.05, 0.3)])
@pytest.mark.parametrize("seed", range(3))
def test_a_candidate_that_dominates_passes_with_120_tasks_and_2_attempts(
    before: float, after: float, seed: int
) -> None:
    verdict = judge(
        sampled("new", flat(after), seed=seed), sampled("old", flat(before), seed=seed), GateRule()
    )
    assert verdict.passed, verdict.reason
    assert verdict.pooled_lower_bound > 0
    assert verdict.reason.startswith("promoted")


def test_nothing_changed_is_held_and_says_so() -> None:
    same = sampled("new", flat(0.5))
    verdict = judge(same, evidence("old", same.tallies), GateRule())
    assert not verdict.passed
    assert verdict.pooled_lower_bound == 0.0
    assert "not shown" in verdict.reason


def test_a_family_that_collapsed_holds_the_candidate_though_the_mean_rose() -> None:
    rates = {**flat(0.9), "dns": 0.1}
    verdict = judge(sampled("new", rates), sampled("old", flat(0.4)), GateRule())
    assert verdict.candidate_rate > verdict.head_rate + 0.2
    assert not verdict.passed
    assert "family 'dns' lost" in verdict.reason
    failed = [family.family for family in verdict.families if not family.passed]
    assert failed == ["dns"]


def with_noisy_dns() -> tuple[Evidence, Evidence]:
    """Everything rose but `dns`, where half of the tasks were won and half lost: no change, much noise."""
    new, old = dict(sampled("new", flat(0.9)).tallies), dict(sampled("old", flat(0.4)).tallies)
    dns = [slug for slug, tally in new.items() if tally.family == "dns"]
    for index, slug in enumerate(dns):
        won = index % 2 == 0
        new[slug], old[slug] = Tally("dns", 2 * won, 2), Tally("dns", 2 * (not won), 2)
    return evidence("new", new), evidence("old", old)


def test_an_unproven_budget_holds_and_says_what_it_would_take() -> None:
    verdict = judge(*with_noisy_dns(), GateRule())
    assert not verdict.passed
    assert "family 'dns' may have lost" in verdict.reason
    assert "measured +0.0% on 24 tasks" in verdict.reason
    # Differences are +1 and -1: variance 24/23, so 2.7055 * 1.0435 / 0.05^2 = 1129.3 tasks; within a task
    # nothing varied, so attempts would not help.
    assert "would take about 1130 tasks at this effect" in verdict.reason


def test_a_wider_budget_lets_the_same_evidence_pass() -> None:
    assert judge(*with_noisy_dns(), GateRule(regression_margin=0.4)).passed


def test_saturated_families_do_not_block() -> None:
    rates = {**flat(1.0), "dns": 0.9}
    verdict = judge(sampled("new", rates), sampled("old", {**flat(1.0), "dns": 0.2}), GateRule())
    assert verdict.passed, verdict.reason


def test_small_families_share_one_budget() -> None:
    new = {f"t{i}": Tally(f"family-{i}", 2, 2) for i in range(10)}
    old = {f"t{i}": Tally(f"family-{i}", 0, 2) for i in range(10)}
    verdict = judge(evidence("new", new), evidence("old", old), GateRule())
    assert [family.family for family in verdict.families] == [SMALL_FAMILIES]
    assert verdict.passed


def test_a_task_that_only_the_candidate_was_graded_on_does_not_count() -> None:
    new = {f"t{i}": Tally("f", 2, 2) for i in range(20)}
    old = {f"t{i}": Tally("f", 0, 2) for i in range(10, 20)}
    verdict = judge(evidence("new", new), evidence("old", old), GateRule())
    assert verdict.num_tasks == 10


def test_one_common_task_is_no_evidence() -> None:
    tally = {"t0": Tally("f", 2, 2)}
    verdict = judge(evidence("new", tally), evidence("old", tally), GateRule())
    assert not verdict.passed
    assert "at least 2" in verdict.reason


def test_min_gain_is_asked_of_the_bound() -> None:
    new, old = sampled("new", flat(0.8)), sampled("old", flat(0.5))
    assert judge(new, old, GateRule()).passed
    verdict = judge(new, old, GateRule(min_gain=0.3))
    assert not verdict.passed
    assert "a gain above 30.0%" in verdict.reason


def test_equal_evidence_equal_verdict() -> None:
    new, old = sampled("new", flat(0.7)), sampled("old", flat(0.5))
    assert judge(new, old, GateRule()) == judge(new, old, GateRule())


def test_worse_needs_more_than_chance() -> None:
    good = sampled("good", flat(0.8))
    assert is_significantly_worse(sampled("bad", flat(0.4)), good, 0.99)
    assert not is_significantly_worse(sampled("same", flat(0.8)), good, 0.99)
    assert not is_significantly_worse(sampled("better", flat(0.95)), good, 0.99)
    assert not is_significantly_worse(sampled("bad", flat(0.0), tasks=1), good, 0.99)
