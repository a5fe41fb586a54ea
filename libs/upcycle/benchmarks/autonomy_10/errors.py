"""What goes wrong on the simulated computer, in the words that an agent reads."""

from upcycle.errors import UpcycleError


class ActionRefused(UpcycleError, ValueError):
    """An app, an element or a text that is not there or not taken; nothing was changed."""

    kind = "action_refused"


class CommandFailed(Exception):
    """A command of the shell ends with a status that is not 0; its text is what it prints."""
