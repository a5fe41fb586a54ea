"""The best head so far, by family."""

from upcycle.gate.baseline import Baseline, HeadRecord, best_heads
from upcycle.gate.decision import Ground, Verdict, decide
from upcycle.gate.outcomes import Outcomes, TaskCount, TaskOutcomes
from upcycle.gate.rule import GateRule


def record(checkpoint: str, **successes: int) -> HeadRecord:
    """10 tasks a family of 10 attempts each, every other with one success more."""
    tallies = {f"{f}{at}": TaskCount(won + at % 2, 10) for f, won in successes.items() for at in range(10)}
    return HeadRecord(checkpoint, tallies, {task: task[0] for task in tallies})


def test_the_best_earlier_head_of_each_family_is_found() -> None:
    records = [record("v0", a=5, b=2), record("v1", a=7, b=2), record("v2", a=3, b=5)]
    best = best_heads(records, "v2")
    assert {family: one.checkpoint for family, one in best.items()} == {"a": "v1"}
    assert set(best["a"].tallies) == {f"a{at}" for at in range(10)}


def test_a_head_that_was_not_played_yet_is_compared_with_the_best_before_it() -> None:
    best = best_heads([record("v0", a=5, b=4), record("v1", a=7, b=2)], "v2")
    assert {family: one.checkpoint for family, one in best.items()} == {"a": "v1", "b": "v0"}


def test_a_lead_within_its_error_is_none() -> None:
    """Leads of .1 and -.1 in turn: the mean is 0."""
    head = record("v1", a=5)
    other = HeadRecord(
        "v0", {t: TaskCount(11 - c.successes, 10) for t, c in head.tallies.items()}, head.families
    )
    assert best_heads([other, head], "v1") == {}


def test_a_family_as_good_as_head_is_held_where_an_earlier_head_was_far_better() -> None:
    won = [TaskOutcomes(f"b{at}", "b", (1,) * 4, (0,) * 4) for at in range(20)]
    kept = [TaskOutcomes(f"a{at}", "a", (1, 0, 0, 0), (1, 0, 0, 0)) for at in range(10)]
    rule, outcomes = GateRule(looks=(2, 4), regression_margin=0.2), Outcomes((*won, *kept))
    assert decide(outcomes, rule, 0.05).verdict is Verdict.PROMOTE
    best = {"a": Baseline("v3", {f"a{at}": TaskCount(4, 4) for at in range(10)})}
    decision = decide(outcomes, rule, 0.05, best)
    assert (decision.verdict, decision.ground) == (Verdict.HOLD, Ground.FAMILY_LOST)
    assert [one.against for one in decision.families] == ["v3", ""]
