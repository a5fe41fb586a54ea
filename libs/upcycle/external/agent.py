"""An agent that is no model of ours, as `create_agent("claude")` makes it: it evaluates, and trains
nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from upcycle.errors import UpcycleError
from upcycle.external.asking import only_model
from upcycle.external.evaluating import MAX_CONCURRENT, ExternalEpisode, ExternalOptions, evaluate_tasks
from upcycle.external.keeping import keep_episodes, planned_evaluation
from upcycle.external.naming import ExternalModel, external_model, names_no_model, with_kind
from upcycle.external.sending import PlayedEvaluation
from upcycle.local_runs import new_run_id
from upcycle.platform_agent import Agent
from upcycle.playing.budgets import limits_of
from upcycle.playing.episode import PlayLimits
from upcycle.playing.runtime_hosts import runtime_of
from upcycle.results import Run

if TYPE_CHECKING:
    from upcycle.tasks import Taskset

_FIELDS: Final = (
    "temperature",
    "top_p",
    "max_turns",
    "max_tokens_per_turn",
    "max_tokens_per_episode",
    "context",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalAgent(Agent):
    """Plays in this process, each environment in a process of its own, with the user's own key. model: as
    people read it. external: its model is empty where that of its server is asked for when it plays."""

    external: ExternalModel
    limits: PlayLimits = field(default_factory=PlayLimits)

    async def evaluate(
        self,
        taskset: "Taskset",
        *,
        group: int = 1,
        runtime: Any = None,
        label: str = "",
        trainable: bool = False,
        max_concurrent: int | None = None,
        episode_deadline_s: int | None = None,
    ) -> list[Run]:
        """Play a taskset, each task `group` times; label is not used. The episodes stay on the platform that
        is found, as `client_graded`, else in `.upcycle/evaluations/RUN/trajectories.jsonl`. Raises
        UpcycleError for trainable and for a deadline, RuntimeRefused for a platform as the runtime, and what
        only_model and evaluate_tasks raise."""
        given = {"trainable": trainable, "episode_deadline_s": episode_deadline_s}
        if what := next((name for name, value in given.items() if value), ""):
            raise UpcycleError(
                f"{what} is given, and agent {self.model!r} is no model of a platform",
                "it plays here, without a deadline, and nothing can be trained on it: leave that out",
            )
        options = ExternalOptions(
            group,
            MAX_CONCURRENT if max_concurrent is None else max_concurrent,
            self.limits,
            runtime=runtime if runtime is None else runtime_of(runtime),
        )
        external = await self._named()
        run_id, played = new_run_id(), list[ExternalEpisode]()
        planned = planned_evaluation(taskset, options, self.sampling)
        runs = await evaluate_tasks(
            tuple(taskset), external, options, run_id=run_id, on_episode=played.append
        )
        evaluation = PlayedEvaluation(run_id, external.name, taskset, group, played)
        return await keep_episodes(evaluation, planned, runs)

    async def _named(self) -> ExternalModel:
        if self.external.model:
            return self.external
        model = await only_model(self.external, self.model)
        return replace(self.external, name=f"{self.model}#{model}", model=model)


def external_agent(name: str, sampling: Mapping[str, Any]) -> ExternalAgent:
    """sampling: temperature, top_p, max_turns, max_tokens_per_turn, max_tokens_per_episode, context. Raises
    PlayRefused for a missing key, a model that must be named and a URL that is none, UpcycleError for another
    field."""
    if unknown := sorted(set(sampling) - set(_FIELDS)):
        raise UpcycleError(f"sampling field {unknown[0]!r} is of our own models", f"use {', '.join(_FIELDS)}")
    unnamed = with_kind(name).removesuffix("#") if names_no_model(name) else ""
    model = external_model(
        f"{unnamed}#?" if unnamed else name,
        temperature=sampling.get("temperature"),
        top_p=sampling.get("top_p"),
    )
    if unnamed:
        model = replace(model, name=unnamed, model="")
    return ExternalAgent(model.name, sampling=dict(sampling), external=model, limits=limits_of(sampling))
