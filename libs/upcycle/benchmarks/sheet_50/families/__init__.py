"""The sorts of tasks, four in each family."""

from . import cleaning, lookups, row_formulas, summaries

KINDS = (*row_formulas.KINDS, *summaries.KINDS, *cleaning.KINDS, *lookups.KINDS)
