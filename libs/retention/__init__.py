"""What services that remove old things have in common: the order of a sweep, its report, references.

The modules `references` (asks those who may refer to a run), `servicer` and `loop` are imported by name.
"""

from retention.sweeps import (
    KEPT_FOR_EVER,
    MIN_AGE,
    Reference,
    References,
    RetentionSweep,
    SweepOrder,
    SweepReport,
    after_from,
    age_of_days,
    checked_age,
    older_than,
)

__all__ = [
    "KEPT_FOR_EVER",
    "MIN_AGE",
    "Reference",
    "References",
    "RetentionSweep",
    "SweepOrder",
    "SweepReport",
    "after_from",
    "age_of_days",
    "checked_age",
    "older_than",
]
