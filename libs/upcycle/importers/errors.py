"""What the importers refuse, by name."""

from upcycle.errors import UpcycleError


class ImportRefused(UpcycleError, ValueError):
    """An environment, or a task, of others does what cannot be said or done here."""

    kind = "import_refused"
