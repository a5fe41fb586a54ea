"""Student's t: how much wider an interval of a mean is when its spread was estimated from few tasks."""

import math
from typing import Final

from upcycle.statistics.paired import normal_quantile

_EXACT_UP_TO: Final = 30
_HALVINGS: Final = 60


def t_quantile(probability: float, freedom: int) -> float:
    """t with P(T <= t) = probability, from a half on. freedom: degrees of freedom, at least 1. Exact up to 30
    of them; beyond, an expansion (Abramowitz and Stegun 26.7.5) to five digits."""
    if freedom > _EXACT_UP_TO:
        return _expansion(normal_quantile(probability), freedom)
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 2 * probability - 1 else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """P(|T| <= sqrt(freedom) · tan(angle)): the finite series of Abramowitz and Stegun 26.7.3 and 26.7.4."""
    cosine, sine, is_odd = math.cos(angle), math.sin(angle), freedom % 2
    term = cosine if is_odd else 1.0
    terms = [term] if freedom > 1 else []
    for power in range(3 if is_odd else 2, freedom, 2):
        term *= cosine * cosine * (power - 1) / power
        terms.append(term)
    total = sine * math.fsum(terms)
    return 2 / math.pi * (angle + total) if is_odd else total


def _expansion(z: float, freedom: int) -> float:
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def t_tail(t: float, freedom: int) -> float:
    """P(T >= t). freedom: degrees of freedom, at least 1."""
    above = (1 - _within(math.atan(abs(t) / math.sqrt(freedom)), freedom)) / 2
    return above if t >= 0 else 1 - above
