"""What goes wrong with a workbook, in the words that an agent or an author reads."""

from upcycle.errors import UpcycleError


class WorkbookRefused(UpcycleError, ValueError):
    """It is no workbook, it is too large, or it has no such sheet or cell."""

    kind = "workbook_refused"


class ExtraMissing(UpcycleError, ImportError):
    """A package that the benchmark needs is not installed."""

    kind = "extra_missing"
