"""Rules that no run can keep are refused, with field, value and limit."""

from typing import Any

import pytest

from upcycle.gate.errors import BadGateRule
from upcycle.gate.rule import CriticalFamily, GateRule, looks_up_to


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"alpha": 0.6}, "alpha is 0.6; use 0.0005 to 0.5"),
        ({"min_gain": -0.1}, "min_gain is -0.1; use 0 to 0.9"),
        ({"regression_margin": 0.0}, "regression_margin is 0; use 0.001 to 1"),
        ({"looks": (4, 2)}, "looks is (4, 2)"),
        ({"looks": ()}, "looks is ()"),
        ({"looks": (2, 65)}, "the last look is 65 attempts; the limit is 64"),
        ({"critical": {"a": CriticalFamily(0.0, 16)}}, "critical family 'a': margin is 0"),
        ({"critical": {"a": CriticalFamily(0.1, 65)}}, "critical family 'a': attempts is 65"),
    ],
)
def test_a_rule_out_of_its_limits_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(BadGateRule) as refused:
        GateRule(**fields)
    assert said in str(refused.value)


def test_a_critical_family_that_the_set_does_not_have_is_refused() -> None:
    rule = GateRule(critical={"payments": CriticalFamily()})
    rule.check_families(["payments", "search"])
    with pytest.raises(BadGateRule, match="'payments' is not in the held-out set; it has a, b"):
        rule.check_families(["b", "a", "a"])


@pytest.mark.parametrize(
    ("cap", "looks"), [(1, (1,)), (2, (2,)), (4, (2, 4)), (6, (2, 4, 6)), (16, (2, 4, 8, 16))]
)
def test_a_cap_is_the_last_look(cap: int, looks: tuple[int, ...]) -> None:
    assert looks_up_to(cap) == looks


def test_a_cap_of_nothing_is_refused() -> None:
    with pytest.raises(BadGateRule, match="plays nothing"):
        looks_up_to(0)
