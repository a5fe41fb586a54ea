"""How much to measure."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """quick: sizes that only show that a benchmark works; its figures are not written down."""

    scratch: Path
    quick: bool = False

    def sized(self, full: int, quick: int) -> int:
        """How many of something."""
        return quick if self.quick else full

    def repeats(self, full: int) -> int:
        """How often to repeat."""
        return 1 if self.quick else full
