"""What a command of the shell is."""

from typing import Protocol

from ..machine.state import Computer


class Command(Protocol):
    """From arguments and what is piped into it, what it prints. Raises CommandFailed."""

    def __call__(self, machine: Computer, args: list[str], given: str, /) -> str: ...
