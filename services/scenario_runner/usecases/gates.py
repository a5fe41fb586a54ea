"""What a gate asks for is refused at submit where no gate could keep it."""

from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.runs import Refused
from scenario_runner.domain.tasksets import RegisteredTaskset
from service_kit.errors import InvalidRequest
from upcycle.gate.configured import configured_rule
from upcycle.gate.errors import BadGateRule
from upcycle.gate.rule import GateRule
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY
from upcycle.run_config import Gate

_SHOWN = 8


def check_gate(unit: PlanUnit, gate: Gate, judges: RegisteredTaskset) -> GateRule:
    """The rule of the gate. judges: its held-out taskset. Raises InvalidRequest, Refused."""
    if judges.num_tasks < 2:
        raise Refused(
            f"gate taskset {judges.name!r} has one task; a gate compares versions over at least 2, about 100 "
            "show a gain of 10 points: register more tasks under another name with split held_out"
        )
    try:
        rule = rule_of(gate)
    except BadGateRule as error:
        raise InvalidRequest(f"spec.gate: {error}") from error
    known = [family for family in unit.families(judges.key) if family != IMPOSSIBLE_FAMILY]
    if not known:
        raise Refused(
            f"all tasks of gate taskset {judges.name!r} are of family {IMPOSSIBLE_FAMILY!r}, so no version "
            "can be better than another: register it with tasks that have a solution"
        )
    for family in rule.critical:
        if family not in known:
            there = f"{', '.join(known[:_SHOWN])}{', …' if len(known) > _SHOWN else ''}"
            raise InvalidRequest(
                f"spec.gate.critical: taskset {judges.name!r} has no family {family!r}; it has {there}"
            )
    return rule


def rule_of(gate: Gate) -> GateRule:
    """Raises BadGateRule."""
    return configured_rule(
        attempts=gate.attempts,
        confidence=gate.confidence,
        regression_margin=gate.regression_margin,
        min_gain=gate.min_gain,
        critical=gate.critical,
    )
