"""What work took of machines, in seconds; docs/do/size.md says how they are measured."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Usage:
    """cost: by the planner's prices, which are settings of scenario_runner, or by the prices of an agent
    that is no model of ours; None where there are none. The tokens are those of such an agent."""

    engine_s: float = 0.0
    environment_s: float = 0.0
    trainer_s: float = 0.0
    cost: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __str__(self) -> str:
        """`engines 12.3 s, environments 45.6 s, trainer 7.8 s, cost 0.25`, or `tokens 1,234 read, 56 written,
        cost 0.25`."""
        seconds = f"engines {self.engine_s:.1f} s, environments {self.environment_s:.1f} s"
        trainer = f", trainer {self.trainer_s:.1f} s" if self.trainer_s else ""
        tokens = f"tokens {self.prompt_tokens:,} read, {self.completion_tokens:,} written"
        took = tokens if self.prompt_tokens or self.completion_tokens else seconds + trainer
        return took + ("" if self.cost is None else f", cost {self.cost:.4g}")

    def of_machines(self) -> dict[str, float]:
        """Seconds of the platform's machines, and their cost where there are prices."""
        seconds = {name: getattr(self, name) for name in ("engine_s", "environment_s", "trainer_s")}
        return seconds if self.cost is None else {**seconds, "cost": self.cost}


def total_usage(parts: Iterable[Usage]) -> Usage:
    """The sum. It has a cost where each of them has one: half a bill is none."""
    found = list(parts)
    costs = [one.cost for one in found if one.cost is not None]
    return Usage(
        engine_s=sum(one.engine_s for one in found),
        environment_s=sum(one.environment_s for one in found),
        trainer_s=sum(one.trainer_s for one in found),
        cost=sum(costs) if costs and len(costs) == len(found) else None,
        prompt_tokens=sum(one.prompt_tokens for one in found),
        completion_tokens=sum(one.completion_tokens for one in found),
    )


NONE: Final = Usage()
