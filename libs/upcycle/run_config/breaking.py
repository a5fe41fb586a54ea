"""Pydantic's errors for rules over several fields, with marks for the reader's names of fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic_core import ArgsKwargs, PydanticCustomError

from upcycle.run_config.limits import shown
from upcycle.run_config.training_rules import Rule

RULES: Final = "rules"
"""Type of the pydantic errors that rules over several fields raise; `reasons` are their sentences."""


def marked(name: str) -> str:
    """A field's name inside the text of a rule, until the reader's name for it is put in."""
    return f"{{{name}}}"


def keep_rules(value: Any, rules: Sequence[Rule]) -> None:
    """Raises an error with the sentence of every rule that the value breaks."""
    reasons = [text for rule in rules for text in rule(value, marked)]
    if reasons:
        raise PydanticCustomError(RULES, "{text}", {"text": "; ".join(reasons), "reasons": reasons})


def refuse_two_lengths(data: Any) -> Any:
    """What a training is made of, as it is, unless it says twice how long the run is."""
    given = (data.kwargs or {}) if isinstance(data, ArgsKwargs) else data
    if isinstance(given, Mapping) and "steps" in given and given.get("epochs") is not None:
        both = f"({shown(given['steps'])}) and {marked('epochs')} ({shown(given['epochs'])})"
        reason = f"{marked('steps')} {both} both say how long the run is: leave one out"
        raise PydanticCustomError(RULES, "{text}", {"text": reason, "reasons": [reason]})
    return data
