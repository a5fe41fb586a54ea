"""Decisions in words."""

from tests.libs.upcycle.gate.test_decision import RULE, judged, played

from upcycle.gate.decision import Decision, Ground, Verdict
from upcycle.gate.outcomes import TaskOutcomes
from upcycle.gate.rule import CriticalFamily, GateRule
from upcycle.gate.words import reason_of


def test_a_promotion_names_rates_bounds_and_levels() -> None:
    """The level of the first of 2 looks at .05: half of it is spent at half of the attempts."""
    said = reason_of(judged(played("11", "00")), RULE)
    assert said == (
        "promoted: a gain above 0.0% is shown, no family lost more than its margin; success 0.0% -> 100.0% "
        "on 20 tasks at 2 attempts a side, lower bound +100.0%, exact p 9.1e-13; both at level 0.025 of this "
        "look, 0.05 of this candidate"
    )


def test_a_lost_family_is_named_with_its_loss() -> None:
    said = reason_of(judged(played("1111", "0000"), played("0000", "1111", num_tasks=6, family="b")), RULE)
    assert "family 'b' measured -100.0% on 6 tasks: a loss of more than 5.0% is more likely than not" in said


def test_a_critical_family_without_proof_is_named() -> None:
    rule = GateRule(looks=(2, 4), critical={"b": CriticalFamily(0.05, 4)})
    decision = judged(played("1111", "0000"), played("1111", "1111", num_tasks=3, family="b"), rule=rule)
    assert "critical family 'b' is not proven to keep its margin of 5.0%: measured +0.0%" in reason_of(
        decision, rule
    )


def test_what_is_open_says_how_much_is_to_be_played() -> None:
    assert reason_of(judged(played("", "", num_tasks=3)), RULE) == (
        "undecided: 3 tasks to be played up to 2 attempts"
    )
    at_risk = judged(played("11", "00"), played("00", "11", num_tasks=6, family="b"))
    assert "the gain is shown; 6 tasks of families at risk to be played up to 4 attempts" in reason_of(
        at_risk, RULE
    )


def test_what_is_incomplete_says_how_much_is_missing() -> None:
    better, lost = played("1111", "0000", num_tasks=8), played("----", "1111", num_tasks=8, family="b")
    assert "evidence incomplete: 32 attempts lost to infrastructure" in reason_of(judged(better, lost), RULE)


def test_by_the_shadow_graders_it_says_what_was_counted_and_what_is_missing() -> None:
    whole = reason_of(judged(played("11", "00")), RULE, by_shadow=True)
    assert whole.endswith("of this candidate; by the shadow graders, all 80 attempts counted")
    better, lost = played("1111", "0000", num_tasks=8), played("----", "1111", num_tasks=8, family="b")
    held = reason_of(judged(better, lost), RULE, by_shadow=True)
    assert held.startswith(
        "held: evidence incomplete: 32 attempts without a shadow grade or lost to infrastructure could turn "
        "the verdict"
    )
    assert held.endswith(
        "by the shadow graders, 96 of 128 attempts counted, 32 missing (without a shadow grade or lost to "
        "infrastructure): to promote, the missing ones count as failures of the candidate and successes of "
        "head"
    )


def test_an_inconclusive_candidate_says_how_many_more_it_takes() -> None:
    """11 of 40 tasks won and 6 lost, all 4 attempts alike: .125 with an error of .103, so no number of
    attempts helps, tasks do."""
    won, lost = played("1111", "0000", num_tasks=11), played("0000", "1111", num_tasks=6)
    same = [TaskOutcomes(f"s{at}", "a", (1,) * 4, (1,) * 4) for at in range(23)]
    lost = [TaskOutcomes(f"l{at}", "a", one.candidate, one.head) for at, one in enumerate(lost)]
    decision = judged(won, lost, same)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.needed is not None
    assert decision.needed.tasks is not None
    assert decision.needed.tasks > 40
    assert decision.needed.attempts is None
    assert f"would take about {decision.needed.tasks} tasks at this effect" in reason_of(decision, RULE)


def test_every_ground_has_words() -> None:
    for ground in Ground:
        decision = Decision(Verdict.HOLD, ground, 0, 0.05, more={"a": 2})
        assert reason_of(decision, RULE).startswith("held: ")
