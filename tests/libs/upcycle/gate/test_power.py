"""What a held-out set can show, said before a run."""

from upcycle.gate.power import power
from upcycle.gate.rule import GateRule


def test_120_tasks_in_4_families_show_10_points_and_most_gains_of_5() -> None:
    found = power({f"f{at}": 30 for at in range(4)}, GateRule())
    assert found.at[0.10] > 0.97
    assert 0.75 < found.at[0.05] < found.at[0.10]
    assert 0.2 < found.at[0.03] < found.at[0.05]
    assert not found.is_hopeless
    assert found.warning() == ""
    assert found.line().startswith("power on 120 held-out tasks (from success 50 %): +3 points ")


def test_a_small_set_is_called_hopeless_with_the_way_out() -> None:
    found = power({"a": 5, "b": 5}, GateRule(looks=(2, 4)))
    assert found.is_hopeless
    assert "use more tasks" in found.warning()


def test_a_smaller_level_shows_less() -> None:
    families, rule = {"a": 40}, GateRule(looks=(2,))
    assert power(families, rule, level=0.001).at[0.10] < power(families, rule).at[0.10]
