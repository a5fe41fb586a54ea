"""`why` names a taskset of a mix that gives no groups, how they ended, and what may help."""

from dataclasses import replace
from fractions import Fraction

from tests.services.scenario_runner.test_explaining import run_facts

from scenario_runner.domain.explain import explain
from scenario_runner.domain.mixes import MixedRow, MixReport
from scenario_runner.domain.run_facts import RunFacts
from scenario_runner.domain.runs import RunState
from scenario_runner.domain.source_groups import SourceReport

FLAT = "excluded(zero_spread)"


def facts(in_a_row: int, state: RunState = RunState.RUNNING) -> RunFacts:
    """Of a run that plays `words` a quarter of the time, with 16 groups a step."""
    found = run_facts()
    row = MixedRow("run-1", 1, "words", "words@2", 5, num_groups=20, num_in_a_row=in_a_row)
    mix = (MixReport(MixedRow("run-1", 0, "ts", "ts", 5), Fraction(3, 4)), MixReport(row, Fraction(1, 4)))
    view = replace(found.view, mix=mix, run=replace(found.view.run, state=state))
    outcomes = {"words": [FLAT] * (in_a_row - 1) + ["failed"]}
    return replace(found, view=view, waits=replace(found.waits, idle_outcomes=outcomes))


def test_a_taskset_that_gives_no_groups_is_named_with_how_they_ended() -> None:
    reasons, _ = explain(facts(9))
    (said,) = [one for one in reasons if "mix" in one.what]
    assert said.owner == "you"
    assert said.what == (
        "alarm: taskset 'words' of the mix gives no groups: the last 9 of its 20 ended without training; it "
        "has 0.25 of the run's groups: 8 excluded(zero_spread), 1 failed"
    )
    assert said.remedy.startswith(
        "larger groups, a higher temperature, or rewards that tell attempts apart; "
    )
    assert "upcycle trajectories list --run run-1" in said.remedy


def test_a_few_groups_or_a_run_that_is_over_say_nothing() -> None:
    for quiet in (facts(7), facts(20, RunState.COMPLETED)):
        assert not [one for one in explain(quiet)[0] if "mix" in one.what]


def test_a_run_that_is_guided_says_how_often() -> None:
    found = run_facts()
    run = replace(found.view.run, next_position=20, num_guided=3)
    _, summary = explain(replace(found, view=replace(found.view, run=run)))
    assert summary == "nothing is stuck: 80 in flight, 100 settled; 3 of 20 groups are guided"


def test_the_kinds_of_guidance_are_counted_apart() -> None:
    found = run_facts(guidance_kinds={"hint": 1, "plan": 2})
    run = replace(found.view.run, next_position=20, num_guided=3)
    _, summary = explain(replace(found, view=replace(found.view, run=run)))
    assert summary.endswith("; 3 of 20 groups are guided (plan 2, hint 1)")


def test_a_guided_run_that_waits_or_is_over_says_how_often_too() -> None:
    found = facts(9)
    waits = replace(found.view.run, next_position=20, num_guided=3)
    _, said = explain(replace(found, view=replace(found.view, run=waits)))
    assert said.startswith("you: alarm: taskset 'words'")
    assert said.endswith("; 3 of 20 groups are guided")
    over = replace(waits, state=RunState.COMPLETED)
    assert explain(replace(found, view=replace(found.view, run=over)))[1] == (
        "is completed; 3 of 20 groups are guided"
    )


def test_a_run_that_takes_single_sessions_says_how_many() -> None:
    found = run_facts()
    sources = (SourceReport("sessions-a", 3, trained=3, single=2), SourceReport("sessions-b", 1, single=1))
    _, summary = explain(replace(found, view=replace(found.view, sources=sources)))
    assert summary.endswith("; 3 recorded sessions are single, compared with the other groups of a step")
