"""Why a project is not written."""

from upcycle.errors import Failed, UpcycleError


class ProjectRefused(UpcycleError, ValueError):
    """The project cannot be written so."""

    kind = "project_refused"


class DemonstrationsFailed(Failed):
    """The demonstrations could not be written; nothing is."""

    kind = "demonstrations_failed"
