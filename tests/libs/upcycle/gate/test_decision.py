"""The gate's decision on outcomes worked by hand."""

import pytest

from upcycle.gate.decision import Decision, Ground, Verdict, decide
from upcycle.gate.errors import BadEvidence
from upcycle.gate.outcomes import Outcome, Outcomes, TaskOutcomes
from upcycle.gate.rule import CriticalFamily, GateRule

RULE = GateRule(looks=(2, 4))


def played(candidate: str, head: str, *, num_tasks: int = 20, family: str = "a") -> list[TaskOutcomes]:
    """Equal tasks. One letter an attempt: 1, 0, or - for one that infrastructure lost."""
    sides = [tuple(None if y == "-" else int(y) for y in side) for side in (candidate, head)]
    return [TaskOutcomes(f"{family}{i}", family, *sides) for i in range(num_tasks)]


def judged(*groups: list[TaskOutcomes], rule: GateRule = RULE) -> Decision:
    return decide(Outcomes(tuple(task for group in groups for task in group)), rule, 0.05)


def test_before_anything_is_played_all_tasks_are_ordered_to_the_first_look() -> None:
    decision = judged(played("", "", num_tasks=3))
    assert (decision.verdict, decision.ground) == (Verdict.CONTINUE, Ground.NEXT_LOOK)
    assert decision.more == {"a0": 2, "a1": 2, "a2": 2}


def test_what_waits_for_one_task_names_that_task_alone() -> None:
    decision = judged(played("11", "00"), played("1", "00", num_tasks=1, family="b"))
    assert decision.more == {"b0": 2}


def test_a_candidate_that_solves_what_head_fails_is_promoted_at_the_first_look() -> None:
    decision = judged(played("11", "00"))
    assert (decision.verdict, decision.attempts, decision.played) == (Verdict.PROMOTE, 2, 80)
    assert decision.gain is not None
    assert (decision.gain.rate, decision.gain.other_rate, decision.gain.lower) == (1.0, 0.0, 1.0)
    assert decision.gain.p == pytest.approx(0.5**40)


def test_a_candidate_that_does_as_head_does_is_held_at_once() -> None:
    """All differences are 0: no spread, so a gain of 1 point is beyond the bound."""
    decision = judged(played("10", "10"))
    assert (decision.verdict, decision.ground) == (Verdict.HOLD, Ground.NO_GAIN_IN_SIGHT)


def test_a_gain_that_lost_attempts_could_undo_is_held_as_incomplete() -> None:
    better, lost = played("1111", "0000", num_tasks=8), played("----", "1111", num_tasks=8, family="b")
    decision = judged(better, lost)
    assert (decision.verdict, decision.ground) == (Verdict.HOLD, Ground.EVIDENCE_INCOMPLETE)
    assert decision.missing == 32


def test_a_gain_that_lost_attempts_cannot_undo_is_promoted() -> None:
    lost = TaskOutcomes("lost", "a", (1, None), (0, None))
    decision = judged([*played("11", "00", num_tasks=39), lost])
    assert (decision.verdict, decision.missing) == (Verdict.PROMOTE, 2)


def test_a_family_that_lost_everything_holds_a_candidate_that_gained_elsewhere() -> None:
    decision = judged(played("1111", "0000"), played("0000", "1111", num_tasks=6, family="b"))
    assert (decision.verdict, decision.ground) == (Verdict.HOLD, Ground.FAMILY_LOST)
    assert [one.family for one in decision.families if one.is_lost] == ["b"]


def test_only_tasks_of_a_family_at_risk_are_topped_up() -> None:
    decision = judged(played("11", "00"), played("00", "11", num_tasks=6, family="b"))
    assert (decision.verdict, decision.ground) == (Verdict.CONTINUE, Ground.FAMILIES_AT_RISK)
    assert decision.more == {f"b{i}": 4 for i in range(6)}


@pytest.mark.parametrize(("margin", "verdict"), [(0.05, Verdict.HOLD), (1.0, Verdict.PROMOTE)])
def test_a_critical_family_must_be_proven_on_its_own(margin: float, verdict: Verdict) -> None:
    """3 tasks without a difference: the smallest error is sqrt(.01 / 3) = .058, so .05 away is t = .87."""
    rule = GateRule(looks=(2, 4), critical={"b": CriticalFamily(margin, 4)})
    decision = judged(played("1111", "0000"), played("1111", "1111", num_tasks=3, family="b"), rule=rule)
    assert decision.verdict is verdict


def test_one_task_is_no_gate() -> None:
    assert judged(played("11", "00", num_tasks=1)).ground is Ground.TOO_FEW_TASKS


@pytest.mark.parametrize("outcome", [2, -1])
def test_an_outcome_that_is_none_is_refused_with_its_task(outcome: Outcome) -> None:
    with pytest.raises(BadEvidence, match="'x'"):
        Outcomes((TaskOutcomes("x", "a", (outcome,), (0,)),))
