"""An agent of the platform: which model and version plays, and how it is sampled."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from upcycle.evaluation import EvalContext, evaluate
from upcycle.results import Run
from upcycle.tasks import Taskset


@dataclass(frozen=True, slots=True)
class Agent:
    """A model of the platform as a player. version: exactly this one; None: the promoted head.

    sampling: fields of SamplingConfig (temperature, top_p, max_turns, …); what is unset takes the platform's
    defaults.
    """

    model: str
    version: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)

    async def run(self, context: EvalContext) -> Run:
        """Play what the context holds; returns the first run, all are in `context.runs`."""
        return await context.play(self)

    async def evaluate(
        self,
        taskset: Taskset,
        *,
        group: int = 1,
        runtime: Any = None,
        label: str = "",
        trainable: bool = False,
        max_concurrent: int | None = None,
        episode_deadline_s: int | None = None,
    ) -> list[Run]:
        """Play a taskset, each task `group` times; what `Taskset.run` calls. Raises as evaluate does,
        and RuntimeRefused for a runtime that is no platform."""
        return await evaluate(
            taskset,
            self,
            group=group,
            runtime=runtime,
            label=label,
            trainable=trainable,
            max_concurrent=max_concurrent,
            episode_deadline_s=episode_deadline_s,
        )
