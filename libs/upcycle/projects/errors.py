"""Why a project is not written, or not whole."""

from upcycle.errors import Failed, UpcycleError


class ProjectRefused(UpcycleError, ValueError):
    """The project cannot be written so."""

    kind = "project_refused"


class DemonstrationsFailed(Failed):
    """The project is written; its demonstrations are not."""

    kind = "demonstrations_failed"
