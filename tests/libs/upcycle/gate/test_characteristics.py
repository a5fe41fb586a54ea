"""A slice of `make gate-study` on every change: fewer draws, bars within three standard errors of those."""

import math

import pytest
from tests.gate_study.bars import Cell, cells
from tests.gate_study.candidates import better_by
from tests.gate_study.population import Population, centre, outcomes_of, played, rates_of, seeded

from upcycle.gate.decision import Verdict, decide
from upcycle.gate.outcomes import Outcomes, TaskOutcomes
from upcycle.gate.rule import GateRule

SLICE = {
    "no gain, promoted: head 0.5, tasks spread 1.5": 300,
    "no gain, promoted: head 0.9, tasks spread 3": 200,
    "run of 20 without a gain, any promoted: head 0.5": 20,
    "power, 120 tasks in 4 families, head 0.5: +5 points at α .05": 150,
    "power, 120 tasks in 4 families, head 0.5: +10 points at α .05": 100,
    "10 families of 12 tasks: one family −20, others +8, head 0.5, promoted": 100,
    "20 families of 6 tasks: one family −20, others +8, head 0.8, promoted": 100,
    "20 families of 6 tasks: power at +5 in every family from .70": 100,
    "failing candidates, promoted: +20 points, crashes in 45% of attempts (truth −12 points)": 100,
    "failing candidates, promoted: +5 points, hangs at a tenth of the tasks (truth about −4)": 100,
    "failing candidates, promoted: -5 points, 90% of its failed attempts lost to infrastructure": 60,
    "95 % interval of a rate holds it: 120 tasks of 16, success 0.9, spread 1.5": 1000,
    "95 % interval of a rate holds it: 30 tasks of 16, success 0.5, spread 1.5": 1000,
    "95 % interval of a difference holds it: 120 tasks of 2, from 0.5, +5 points": 1000,
    "watch, rolled back: equal head, success 0.5, within 5,000 pairs": 8,
    "watch, rolled back: −10 points at 0.85, within 600 pairs": 60,
}
CELLS = {f"{cell.part}: {cell.title}": cell for cell in cells()}


@pytest.mark.parametrize("name", list(SLICE))
def test_the_bar_holds_within_the_error_of_its_slice(name: str) -> None:
    cell, reps = CELLS[name], SLICE[name]
    share, _ = cell.measured(reps)
    assert cell.bar.low - slack(cell.bar.low, reps) <= share <= cell.bar.high + slack(cell.bar.high, reps)


def slack(limit: float, reps: int) -> float:
    return 3 * math.sqrt(limit * (1 - limit) / reps)


def test_a_bar_that_is_missed_is_named() -> None:
    """The gate of one look without a family rule would promote this one: 15 points better."""
    cell = Cell("part", "far better", better_by(0.15), 20, CELLS[next(iter(SLICE))].bar)
    share, played_of_both = cell.measured(20)
    assert not cell.bar.holds(share, 20)
    assert 480 <= played_of_both <= 960


def test_a_shifted_population_has_the_mean_that_was_asked_for() -> None:
    rng = seeded("means")
    for mean, gain in ((0.1, 0.03), (0.5, 0.1), (0.9, -0.2)):
        set_ = Population.drawn(rng, tasks=200_000, mean=mean)
        assert set_.head().mean() == pytest.approx(mean, abs=0.003)
        assert set_.changed(rng, gain).mean() == pytest.approx(mean + gain, abs=0.003)
    assert float(rates_of(centre(0.5, 1.5) + 0 * set_.ease[:1])[0]) == pytest.approx(0.5, abs=1e-6)


def test_look_by_look_or_at_once_the_verdict_is_the_same() -> None:
    """What is ordered is played and no more; the attempts beyond it change nothing."""
    rng, rule = seeded("replay"), GateRule(looks=(2, 4, 8))
    verdicts = set()
    for gain in (0.0, 0.05, 0.1, -0.1) * 5:
        set_ = Population.drawn(rng, tasks=40, families=4)
        everything = outcomes_of(
            set_.family, played(rng, set_.changed(rng, gain), 8), played(rng, set_.head(), 8)
        )
        at_once, step = decide(everything, rule, 0.05), decide(_up_to(everything, {}), rule, 0.05)
        ordered: dict[str, int] = {}
        while step.verdict is Verdict.CONTINUE:
            assert all(ordered.get(task, 0) < attempts for task, attempts in step.more.items())
            ordered |= step.more
            step = decide(_up_to(everything, ordered), rule, 0.05)
        assert step == at_once
        assert step.played == 2 * sum(ordered.values())
        verdicts.add(step.verdict)
    assert verdicts >= {Verdict.PROMOTE, Verdict.HOLD}


def _up_to(outcomes: Outcomes, attempts: dict[str, int]) -> Outcomes:
    return Outcomes(
        tuple(
            TaskOutcomes(
                t.task, t.family, t.candidate[: attempts.get(t.task, 0)], t.head[: attempts.get(t.task, 0)]
            )
            for t in outcomes.tasks
        )
    )
