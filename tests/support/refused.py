"""How many attacks were seen refused, for the closing lines of a run."""

from collections import Counter
from typing import Any, Final

import pytest

_attacks: Final = Counter[str]()
_OUTPUT: Final = "attacks"


def note(kind: str, count: int = 1) -> None:
    """Count attacks that a test saw refused."""
    _attacks[kind] += count


def hand_over(config: pytest.Config) -> None:
    """At the end of a worker of xdist: give what it counted to the process that reports."""
    if (output := getattr(config, "workeroutput", None)) is not None:
        output[_OUTPUT] = dict(_attacks)


def take_over(node: Any) -> None:
    """What a worker counted."""
    _attacks.update(getattr(node, "workeroutput", {}).get(_OUTPUT, {}))


def report(terminal: pytest.TerminalReporter, where: str) -> None:
    """Write how many there were, by kind; nothing where none was noted."""
    if _attacks:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(_attacks.items()))
        terminal.write_line(f"{_attacks.total()} attacks {where} were refused: {kinds}")
