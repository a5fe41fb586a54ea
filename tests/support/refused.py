"""How many attacks were seen refused, for the closing lines of a run in one process."""

from collections import Counter
from typing import Final

import pytest

_attacks: Final = Counter[str]()


def note(kind: str, count: int) -> None:
    """Count attacks that a test saw refused."""
    _attacks[kind] += count


def report(terminal: pytest.TerminalReporter, where: str) -> None:
    """Write how many there were, by kind; nothing where none was noted."""
    if _attacks:
        kinds = ", ".join(f"{count} {kind}" for kind, count in _attacks.items())
        terminal.write_line(f"{_attacks.total()} attacks {where} were refused: {kinds}")
