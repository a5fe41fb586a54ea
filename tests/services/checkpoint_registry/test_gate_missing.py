"""What was not graded never helps a candidate: breaking an episode pays no more than losing it."""

from dataclasses import replace

import pytest
from tests.services.checkpoint_registry.conftest import RegistryHarness
from tests.services.checkpoint_registry.test_gate import sampled

from checkpoint_registry.domain.evidence import Evidence, Tally
from checkpoint_registry.domain.gate import GateRule, is_significantly_worse, judge
from checkpoint_registry.domain.models import CheckpointState
from checkpoint_registry.domain.runs import EpisodeOutcome, tally


def evidence(name: str, tallies: dict[str, Tally]) -> Evidence:
    return Evidence(name, (), len(tallies), tallies)


def families(**rates: tuple[int, int, int]) -> dict[str, Tally]:
    """Ten tasks per family with the same (successes, attempts, missing)."""
    return {
        f"{family}-{index}": Tally(family, *counts) for family, counts in rates.items() for index in range(10)
    }


def test_a_candidate_that_breaks_a_whole_family_is_held_as_one_that_loses_it() -> None:
    head = evidence("old", families(f0=(0, 2, 0), payments=(2, 2, 0)))
    wrong = evidence("new", families(f0=(2, 2, 0), payments=(0, 2, 0)))
    broken = evidence("new", families(f0=(2, 2, 0), payments=(0, 0, 2)))
    unseen = evidence("new", families(f0=(2, 2, 0)))
    verdict = judge(wrong, head, GateRule())
    assert not verdict.passed
    assert "family 'payments' lost 100.0%" in verdict.reason
    assert judge(broken, head, GateRule()) == judge(unseen, head, GateRule()) == verdict


def test_half_of_the_attempts_missing_halves_the_rate_that_counts() -> None:
    # Head solves 1 of 2. The candidate solved the one that was graded: with the missing one that is 1 of 2.
    head = evidence("old", families(f=(1, 2, 0)))
    verdict = judge(evidence("new", families(f=(1, 1, 1))), head, GateRule())
    assert (verdict.candidate_rate, verdict.head_rate, verdict.passed) == (0.5, 0.5, False)


def test_a_missing_attempt_that_was_made_up_for_is_no_failure() -> None:
    # 4 of 4 graded, where one more was lost: head has 2, so no attempt is missing where head has one.
    head = evidence("old", families(f=(1, 2, 0)))
    assert judge(evidence("new", families(f=(4, 4, 1))), head, GateRule()).candidate_rate == 1.0
    # Head has 8: of the candidate the fifth attempt is missing, and three more were never asked for.
    head = evidence("old", families(f=(2, 8, 0)))
    verdict = judge(evidence("new", families(f=(4, 4, 1))), head, GateRule())
    assert verdict.candidate_rate == pytest.approx(0.8)


def test_what_head_lacks_is_not_held_against_the_candidate_nor_against_head() -> None:
    head = evidence("old", families(f=(1, 1, 1)))
    assert judge(evidence("new", families(f=(2, 2, 0))), head, GateRule()).head_rate == 1.0
    solved = evidence("before", families(f=(2, 2, 0)))
    assert not is_significantly_worse(head, solved, 0.95)  # lost to infrastructure, not to the policy


def test_two_tasks_of_twenty_move_head_back_for_no_one() -> None:
    before = evidence("before", families(f0=(2, 2, 0), payments=(2, 2, 0)))
    few = {"f0-0": Tally("f0", 0, 2), "f0-1": Tally("f0", 0, 2), "f0-2": Tally("f0", 0, 0, missing=2)}
    assert not is_significantly_worse(evidence("now", few), before, 0.95)
    assert is_significantly_worse(evidence("now", families(f0=(0, 2, 0))), before, 0.95)  # a family is lost


@pytest.mark.parametrize("crash_percent", [10, 30, 50, 80])
def test_no_share_of_missing_episodes_promotes_an_equal_candidate(crash_percent: int) -> None:
    rates = dict.fromkeys(("bad_deploy", "db_down", "pool", "config", "dns"), 0.5)
    head, same = sampled("old", rates, attempts=4), sampled("new", rates, attempts=4, seed=1)
    num_broken = len(same.tallies) * crash_percent // 100
    lost_first = sorted(same.tallies, key=lambda slug: same.tallies[slug].successes)[:num_broken]
    survivors = {
        slug: Tally(one.family, 0, 0, one.attempts) if slug in lost_first else one
        for slug, one in same.tallies.items()
    }
    verdict = judge(replace(same, tallies=survivors), head, GateRule())
    assert not verdict.passed, verdict.reason


def test_ungraded_results_are_tallied_as_missing() -> None:
    rows = [
        EpisodeOutcome("a", "f", graded, success, 3, 3)
        for graded, success in ((True, True), (True, False), (False, False))
    ]
    assert tally([*rows, EpisodeOutcome("b", "g", False, False, 0, 0)]) == {
        "a": Tally("f", 1, 2, 1),
        "b": Tally("g", 0, 0, 1),
    }


async def test_one_missing_episode_is_made_up_for_before_the_judgement(harness: RegistryHarness) -> None:
    await harness.save(1)
    await harness.drive()
    await harness.finish(0, 0.3, lost=1)
    first = harness.planner.order_of(1)
    await harness.finish(1, 0.9, lost=1)
    assert await harness.head() == 0
    harness.clock.forward(60)
    await harness.drive()
    assert harness.planner.order_of(1) != first
    await harness.finish(1, 0.9)
    await harness.drive()
    await harness.finish(0, 0.3)
    assert await harness.head() == 1


async def test_a_task_that_is_never_graded_holds_the_candidate_by_name(harness: RegistryHarness) -> None:
    await harness.save(1)
    await harness.drive()
    await harness.finish(0, 0.3)
    for _ in range(3):
        await harness.finish(1, 0.9, lost=2)  # both attempts at t00
        harness.clock.forward(60)
        await harness.drive()
    assert await harness.state(1) is CheckpointState.HELD
    expected = "the last: 1 of 40 tasks have fewer than 2 graded attempts (families family-0)"
    assert expected in await harness.reason(1)
