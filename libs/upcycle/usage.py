"""What work took of machines, in seconds; docs/do/size.md says how they are measured."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from upcycle.api.common.v1 import common_pb2


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


def usage_of(messages: "Iterable[common_pb2.Usage]") -> Usage:
    """The sum of messages. It has a cost if one of them has."""
    found = list(messages)
    costs = [one.cost for one in found if one.HasField("cost")]
    return Usage(
        engine_s=sum(one.engine_s for one in found),
        environment_s=sum(one.environment_s for one in found),
        trainer_s=sum(one.trainer_s for one in found),
        cost=sum(costs) if costs else None,
    )
