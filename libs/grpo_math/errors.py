"""Errors of grpo_math: one base, one class per reaction of the caller."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GrpoMathError(ValueError):
    """Base of every error that this package raises on bad input."""


class UnknownName(GrpoMathError):
    """A loss, advantage, aggregation or parameter name that does not exist."""


class UnsoundCombination(GrpoMathError):
    """Parts that are each valid and together compute something else than they say."""


class MalformedRow(GrpoMathError):
    """A training row whose arrays disagree in length or hold impossible values."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """The error for a name that is not one of `known`, with the nearest valid one."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return UnknownName(f"{kind} {name!r} does not exist; {hint}known: {', '.join(names)}")
