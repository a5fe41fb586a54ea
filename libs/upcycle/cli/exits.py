"""Exit statuses, the same for every command; `upcycle --help` prints them."""

from enum import IntEnum


class Exit(IntEnum):
    """What the process tells its caller."""

    OK = 0
    FAILED = 1
    USAGE = 2
    GATE_UNMET = 3
    UNREACHABLE = 4
    INTERRUPTED = 130


TABLE = (  # one line: the terminal breaks it where it ends
    "Exit status: 0 done; 1 it ran and failed; 2 usage or configuration; 3 a bar such as --min-success "
    "was not reached; 4 a service cannot be reached; 130 interrupted."
)
