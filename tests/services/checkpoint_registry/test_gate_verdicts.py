"""Verdicts of the gate on evidence so small that a reader can check every number and every sentence."""

import hashlib
from typing import Any

import pytest

from checkpoint_registry.domain.evidence import Evidence, Tally
from checkpoint_registry.domain.gate import (
    SMALL_FAMILIES,
    FamilyVerdict,
    GateRule,
    Verdict,
    is_significantly_worse,
    judge,
    pair_by_task,
)
from upcycle.statistics.paired import PairedTask, bootstrap_lower

Pairs = dict[str, tuple[Tally, Tally]]
"""By slug: of the candidate, of head."""


def tasks(family: str, number: int, new: tuple[int, int], old: tuple[int, int], first: int = 0) -> Pairs:
    """`number` tasks of a family with the same (successes, attempts) of both versions."""
    slugs = [f"t{first + at:02d}" for at in range(number)]
    return {slug: (Tally(family, *new), Tally(family, *old)) for slug in slugs}


def both(pairs: Pairs, new: str = "new", old: str = "old") -> tuple[Evidence, Evidence]:
    """Of the candidate and of head."""
    return (
        Evidence(new, (), len(pairs), {slug: pair[0] for slug, pair in pairs.items()}),
        Evidence(old, (), len(pairs), {slug: pair[1] for slug, pair in pairs.items()}),
    )


# 2 of 2 against 1 of 2: all differences are 0.5, so every bound is 0.5. Of 3 successes in 4 attempts both
# of the candidate's succeed in 2 of C(4, 3) = 4 ways, so p is 1/2 per task: 1/1024 in ten.
HALF_BETTER = tasks("f", 10, (2, 2), (1, 2))
ALPHA_OF_TEN = GateRule(confidence=1 - 1 / 1024)  # exact in binary


def test_the_verdict_holds_the_numbers_it_rests_on() -> None:
    verdict = judge(*both(HALF_BETTER), GateRule())
    family = FamilyVerdict("f", 10, 1.0, 0.5, 0.5, True, "")
    # Wilson at z = 1.6449 of 20 in 20 is 0.8808 and up, of 10 in 20 at most 0.6726; phi is 0, as no success
    # of head is without one of the candidate: 0.5 - sqrt(0.1192^2 + 0.1726^2).
    newcombe: Any = pytest.approx(0.2903, abs=1e-4)
    reason = (
        "promoted: success 50.0% -> 100.0% on 10 tasks, lower bound +50.0%, exact p 0.00098, "
        "no family beyond its budget"
    )
    assert verdict == Verdict(True, reason, 10, 1.0, 0.5, 0.5, newcombe, 1 / 1024, (family,))


def test_two_tasks_can_promote_and_one_says_that_two_are_needed() -> None:
    # 2 of 2 against 0 of 2 is 1 of C(4, 2) = 6 ways: 1/36 for two tasks.
    assert judge(*both(tasks("f", 2, (2, 2), (0, 2))), GateRule()).passed
    reason = "held: only 1 task(s) were graded for both versions; at least 2 are needed"
    alone = judge(*both(tasks("f", 1, (2, 2), (0, 2))), GateRule())
    assert alone == Verdict(False, reason, 1, 0.0, 0.0, -1.0, -1.0, 1.0, ())


def test_a_p_value_of_exactly_alpha_promotes() -> None:
    assert judge(*both(HALF_BETTER), ALPHA_OF_TEN).reason.startswith("promoted")
    assert judge(*both(HALF_BETTER), ALPHA_OF_TEN).passed


def test_a_bound_of_exactly_the_gain_that_is_asked_for_holds() -> None:
    verdict = judge(*both(HALF_BETTER), GateRule(min_gain=0.5))
    assert not verdict.passed
    assert verdict.reason == (
        "held: success 50.0% -> 100.0% on 10 tasks, lower bound +50.0%; "
        "a gain above 50.0% is not shown at 95% (exact p 0.00098)"
    )


def test_a_gain_that_chance_explains_holds_and_says_what_it_would_take() -> None:
    verdict = judge(*both(tasks("f", 4, (2, 2), (1, 2))), GateRule())
    assert not verdict.passed
    # p is 1/16. No variance between the tasks: one task more than now. Within a task it is 1/4, and
    # 0.5^2 * 4 / 2.7055 = 0.37 are allowed: attempts, too, one more than now.
    assert verdict.reason == (
        "held: success 50.0% -> 100.0% on 4 tasks, lower bound +50.0%; a gain above 0.0% is not shown at 95% "
        "(exact p 0.062); would take about 5 tasks or 3 attempts per task at this effect"
    )


def test_every_problem_is_named() -> None:
    pairs = tasks("a", 8, (0, 2), (2, 2)) | tasks("b", 8, (1, 2), (2, 2), 8)
    # 5 % of the resamples hold 11 tasks of 16 or more of family a: 0.75 + 3/32 * sqrt(16/15).
    assert judge(*both(pairs), GateRule()).reason == (
        "held: success 100.0% -> 25.0% on 16 tasks, lower bound -84.7%; "
        "a gain above 0.0% is not shown at 95% (exact p 1); "
        "family 'a' lost 100.0%, more than its budget of 5.0%; "
        "family 'b' lost 50.0%, more than its budget of 5.0%"
    )


def test_a_family_that_lost_exactly_its_budget_passes() -> None:
    pairs = tasks("a", 8, (1, 2), (2, 2)) | tasks("b", 16, (2, 2), (0, 2), 8)
    verdict = judge(*both(pairs), GateRule(regression_margin=0.5))
    assert verdict.passed, verdict.reason
    assert [family.lower_bound for family in verdict.families] == [-0.5, 1.0]


def test_a_family_whose_mean_is_its_budget_may_have_lost_more_and_no_sample_shows_it() -> None:
    pairs = tasks("a", 2, (0, 1), (1, 1)) | tasks("a", 6, (1, 1), (1, 1), 2)
    pairs |= tasks("b", 40, (1, 1), (0, 1), 8)
    verdict = judge(*both(pairs), GateRule(regression_margin=0.25))
    # 5 % of the resamples hold 4 losses of 8 or more: 0.25 + 0.25 * sqrt(8/7).
    assert verdict.families[0].reason == (
        "family 'a' may have lost 51.7% (measured -25.0% on 8 tasks), "
        "its budget is 25.0%; more evidence is unlikely to change it"
    )


def test_a_family_of_a_single_task_says_that_two_tasks_can_pass() -> None:
    pairs = tasks("a", 1, (1, 1), (1, 1)) | tasks("b", 40, (1, 1), (0, 1), 1)
    verdict = judge(*both(pairs), GateRule())
    assert not verdict.passed
    assert verdict.families[-1].reason == (
        "family '(small families)' may have lost 100.0% (measured +0.0% on 1 task), "
        "its budget is 5.0%; would take about 2 tasks at this effect"
    )
    pairs |= tasks("c", 1, (1, 1), (1, 1), 41)
    assert judge(*both(pairs), GateRule()).passed


def test_a_family_whose_budget_is_not_proven_says_how_many_tasks_would_prove_it() -> None:
    pairs = tasks("a", 4, (1, 1), (0, 1)) | tasks("a", 4, (0, 1), (1, 1), 4)
    pairs |= tasks("b", 40, (1, 1), (0, 1), 8)
    # 5 % of the resamples hold 2 gains of 8 or fewer: -0.5 * sqrt(8/7). Variance 8/7, z^2 = 2.7055:
    # 2.7055 * 8/7 / 0.25^2 = 49.5.
    assert judge(*both(pairs), GateRule(regression_margin=0.25)).families[0].reason == (
        "family 'a' may have lost 53.5% (measured +0.0% on 8 tasks), "
        "its budget is 25.0%; would take about 50 tasks at this effect"
    )


def test_a_family_of_the_least_size_is_judged_alone_and_a_smaller_one_with_the_others() -> None:
    pairs = tasks("c", 7, (2, 2), (0, 2)) | tasks("b", 8, (2, 2), (0, 2), 7)
    pairs |= tasks("a", 8, (2, 2), (0, 2), 15) | tasks("d", 1, (2, 2), (2, 2), 23)
    families = judge(*both(pairs), GateRule()).families
    assert [(one.family, one.num_tasks, one.head_rate) for one in families] == [
        ("a", 8, 0.0),
        ("b", 8, 0.0),
        (SMALL_FAMILIES, 8, 0.125),
    ]


def test_a_task_without_attempts_of_one_version_is_left_out() -> None:
    new = {"b": Tally("f", 1, 2), "a": Tally("g", 0, 1), "x": Tally("f", 0, 0), "y": Tally("f", 1, 1)}
    old = {"a": Tally("-", 3, 4), "b": Tally("-", 5, 6), "x": Tally("f", 1, 1), "y": Tally("f", 0, 0)}
    pairs = pair_by_task(Evidence("new", (), 4, new), Evidence("old", (), 4, old))
    assert pairs == [PairedTask("g", 0, 1, 3, 4), PairedTask("f", 1, 2, 5, 6)]


def test_resampling_follows_the_rule_and_a_seed_that_both_checkpoints_give() -> None:
    hundredths = (1, 2, 4, 8, 16, 32, 64, 3, 9)  # so that hardly two draws have the same mean
    pairs: Pairs = {}
    for at, number in enumerate(hundredths):
        pairs |= tasks("f", 1, (number, 100), (0, 100), at)
    verdict = judge(*both(pairs), GateRule(confidence=0.5, bootstrap_reps=3))
    seed = 0x41D869BA56385D11  # the first 8 bytes of sha256("new\nold")
    expected = bootstrap_lower([number / 100 for number in hundredths], 0.5, seed=seed, reps=3)
    assert verdict.pooled_lower_bound == verdict.families[0].lower_bound == expected


def test_worse_at_a_p_value_of_exactly_what_the_confidence_leaves_is_significant() -> None:
    better, worse = both(HALF_BETTER)
    assert is_significantly_worse(worse, better, 1 - 1 / 1024)
    assert not is_significantly_worse(worse, better, 1 - 1 / 2048)


def test_two_tasks_can_show_a_loss_and_one_cannot() -> None:
    better, worse = both(tasks("f", 2, (2, 2), (0, 2)))
    assert is_significantly_worse(worse, better, 0.95)
    better, worse = both(tasks("f", 1, (9, 9), (0, 9)))
    assert not is_significantly_worse(worse, better, 0.95)


def test_equal_evidence_is_no_loss_at_any_confidence() -> None:
    same, now = both(tasks("f", 10, (1, 2), (1, 2)))
    assert not is_significantly_worse(now, same, 0.0)


def test_a_loss_is_resampled_with_a_seed_that_both_checkpoints_give() -> None:
    pairs = tasks("f", 6, (2, 2), (0, 2)) | tasks("f", 5, (0, 2), (2, 2), 6)
    differences = [1.0] * 6 + [-1.0] * 5
    found: list[bool] = []
    expected: list[bool] = []
    for number in range(24):  # with one draw, each seed decides anew
        before, now = both(pairs, f"before-{number}", "now")
        seed = int.from_bytes(hashlib.sha256(f"before-{number}\nnow".encode()).digest()[:8], "big")
        found.append(is_significantly_worse(now, before, 0.5, reps=1))
        expected.append(bootstrap_lower(differences, 0.5, seed=seed, reps=1) > 0)
    assert found == expected
    assert set(found) == {True, False}
