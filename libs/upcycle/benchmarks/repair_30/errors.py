"""What goes wrong with a file of the repository, in the words that an agent reads."""

from upcycle.errors import UpcycleError


class FileRefused(UpcycleError, ValueError):
    """A path outside the repository, a file that is not there, or one that is too large."""

    kind = "file_refused"
