"""What can be wrong with the files of a state."""

from upcycle.errors import UpcycleError


class InvalidStateFiles(UpcycleError, ValueError):
    """They are no training state that can be read. Final: reading again gives the same."""

    kind = "invalid_state_files"
