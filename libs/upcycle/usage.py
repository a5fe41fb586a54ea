"""What work took of machines, in seconds; docs/do/size.md says how they are measured."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Usage:
    """cost: by the planner's prices, which are settings of scenario_runner; None where it has none."""

    engine_s: float = 0.0
    environment_s: float = 0.0
    trainer_s: float = 0.0
    cost: float | None = None

    def __str__(self) -> str:
        """`engines 12.3 s, environments 45.6 s, trainer 7.8 s, cost 0.25`."""
        seconds = f"engines {self.engine_s:.1f} s, environments {self.environment_s:.1f} s"
        trainer = f", trainer {self.trainer_s:.1f} s" if self.trainer_s else ""
        return seconds + trainer + ("" if self.cost is None else f", cost {self.cost:.4g}")


NONE: Final = Usage()
