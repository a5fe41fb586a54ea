"""Why nothing is graded again."""

from upcycle.errors import UpcycleError


class RegradeRefused(UpcycleError, ValueError):
    """The run, or the source, is such that nothing can be graded again; nothing was begun."""

    kind = "regrade_refused"
