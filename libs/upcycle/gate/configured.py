"""The rule of a gate from what a run's configuration says. Planner, registry and CLI read it here."""

from collections.abc import Iterable
from typing import Final

from upcycle.gate.errors import BadGateRule
from upcycle.gate.rule import CriticalFamily, GateRule, looks_up_to

_DIGITS: Final = 9  # of alpha: 1 - 0.95 is 0.05


def configured_rule(
    *,
    attempts: int,
    confidence: float,
    regression_margin: float,
    min_gain: float,
    critical: Iterable[str] = (),
) -> GateRule:
    """attempts: the cap. confidence: 1 - alpha of the run. critical: `FAMILY[:MARGIN[:ATTEMPTS]]`. Raises
    BadGateRule."""
    looks = looks_up_to(attempts)
    families = dict(_critical(text, regression_margin, attempts) for text in critical)
    return GateRule(
        alpha=round(1 - confidence, _DIGITS),
        looks=looks,
        min_gain=min_gain,
        regression_margin=regression_margin,
        critical=families,
    )


def _critical(text: str, margin: float, attempts: int) -> tuple[str, CriticalFamily]:
    name, *rest = text.split(":")
    try:
        if not name or len(rest) > 2:
            raise ValueError
        own_margin = float(rest[0]) if rest and rest[0] else margin
        own_attempts = int(rest[1]) if len(rest) == 2 else attempts
    except ValueError:
        raise BadGateRule(
            f"critical family {text!r:.80} is not FAMILY, FAMILY:MARGIN or FAMILY:MARGIN:ATTEMPTS"
        ) from None
    return name, CriticalFamily(own_margin, own_attempts)
