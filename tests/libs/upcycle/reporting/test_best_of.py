"""What choosing gives, worked by hand: three tasks of two attempts."""

import pytest
from tests.libs.upcycle.reporting.rows import episode

from upcycle.reporting.best_of import BestOfReport, best_of_report

ROWS = [
    *(episode("a", 0, 0.0), episode("a", 1, 1.0)),
    *(episode("b", 0, 1.0), episode("b", 1, 0.0)),
    *(episode("c", 0, 0.0), episode("c", 1, 0.0)),
]


def report(scores: dict[str, float], **fields: object) -> BestOfReport:
    by_id = {f"ep-{name}": score for name, score in scores.items()}
    seen = frozenset({"t" * 64}) if fields else frozenset[str]()
    return best_of_report(ROWS, by_id, num_attempts=2, chosen_by="orm:x", seen=seen)


def test_the_chosen_attempt_counts_beside_the_mean_and_the_ceiling() -> None:
    found = report({"a-0": 0.1, "a-1": 0.9, "b-0": 0.2, "b-1": 0.3, "c-0": 0.5, "c-1": 0.4})
    assert [(one.task_slug, one.episode, one.success) for one in found.choices] == [
        ("a", "traj-a-1", True),
        ("b", "traj-b-1", False),
        ("c", "traj-c-0", False),
    ]
    values = (found.chosen.value, found.mean.value, found.ceiling.value, found.gain.value, found.left.value)
    assert values == pytest.approx((1 / 3, 1 / 3, 2 / 3, 0, 1 / 3))
    assert found.within is not None
    assert found.within.value == 0.5
    assert not found.gate_evidence


def test_the_gain_is_paired_by_task() -> None:
    found = report({"a-0": 0.1, "a-1": 0.9, "b-0": 0.4, "b-1": 0.3, "c-0": 0.5, "c-1": 0.4})
    # Gains 1/2, 1/2, 0: mean 1/3, deviation .2887, error 1/6, t of 2 4.3027: 1/3 ± .7171.
    assert found.gain.value == pytest.approx(1 / 3)
    assert found.gain.interval is not None
    assert (found.gain.interval.low, found.gain.interval.high) == pytest.approx((-0.3838, 1.0), abs=1e-3)


def test_what_has_no_score_is_never_chosen_and_a_task_without_any_is_no_success() -> None:
    found = report({"a-0": 0.1, "b-0": 0.1, "b-1": 0.1})
    assert [one.episode for one in found.choices] == ["traj-a-0", "traj-b-0", ""]
    assert found.chosen.value == pytest.approx(1 / 3)
    assert found.num_unscored == 3
