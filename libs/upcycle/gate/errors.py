"""What the decisions refuse: a rule that cannot be kept, evidence that cannot be read."""

from upcycle.errors import UpcycleError


class BadGateRule(UpcycleError, ValueError):
    """A gate rule that no run can keep; names the field, the value and the limit."""

    kind = "gate_rule_invalid"


class BadEvidence(UpcycleError, ValueError):
    """Outcomes that cannot be judged; names the task and the value."""

    kind = "gate_evidence_invalid"
