"""Before a run: what its held-out set can show, before a run trains towards a gate that cannot open."""

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from upcycle.run_config import Gate

if TYPE_CHECKING:
    from upcycle.gate.power import Power
    from upcycle.platform import Platform


async def power_of(platform: "Platform", gate: Gate) -> "Power":
    """Of the run's first candidate, at the level that it will have; later ones have less, unless one was
    promoted. About a second of processor time."""
    from upcycle.api.taskset.v1.service_pb2 import GetTasksetRequest
    from upcycle.gate.configured import configured_rule
    from upcycle.gate.power import power
    from upcycle.gate.spending import AlphaWealth
    from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY

    found = await platform.tasksets.GetTaskset(GetTasksetRequest(name=gate.taskset), timeout=60)
    families = Counter(task.family or "default" for task in found.taskset.tasks)
    del families[IMPOSSIBLE_FAMILY]  # they are played, and no rate counts them
    rule = configured_rule(
        attempts=gate.attempts,
        confidence=gate.confidence,
        regression_margin=gate.regression_margin,
        min_gain=gate.min_gain,
        critical=gate.critical,
    )
    return await asyncio.to_thread(power, families, rule, AlphaWealth(rule.alpha).next_level)
