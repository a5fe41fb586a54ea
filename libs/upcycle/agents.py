"""Agents: a name for the policy that plays, and how it is sampled."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from upcycle.errors import UpcycleError
from upcycle.evaluation import EvalContext, evaluate
from upcycle.external.naming import is_external
from upcycle.results import Run
from upcycle.tasks import Taskset

if TYPE_CHECKING:
    from upcycle.platform import Addresses, Platform

_SAMPLING = ("temperature", "top_p", "max_turns", "max_tokens_per_turn", "max_tokens_per_episode", "seed")

# Fields of `completion_kwargs` that ask for what the platform records anyway.
_ALWAYS_ON = frozenset({"return_token_ids", "logprobs"})


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
        runtime: "Platform | Addresses | None" = None,
        label: str = "",
        trainable: bool = False,
        max_concurrent: int | None = None,
    ) -> list[Run]:
        """Play a taskset, each task `group` times; what `Taskset.run` calls. Raises as evaluate does."""
        return await evaluate(
            taskset,
            self,
            group=group,
            runtime=runtime,
            label=label,
            trainable=trainable,
            max_concurrent=max_concurrent,
        )


def create_agent(
    model: str,
    *,
    version: int | None = None,
    completion_kwargs: Mapping[str, Any] | None = None,
    **sampling: Any,
) -> Agent:
    """An agent for a model slug; `incident@v12` pins a version, else head plays.

    Also for a model of others, with your own key: `claude`, `openai`, `gemini`, `openai_compatible`, each
    with an optional `#model`, or `openai:URL#model`. It plays in this process, and only evaluates.

    sampling: temperature, top_p, max_turns, max_tokens_per_turn, max_tokens_per_episode, seed.
    completion_kwargs: accepted for code written against chat completions: `temperature`, `top_p`,
    `max_tokens`, and `extra_body` with `return_token_ids`, which is always on here. Raises UpcycleError for
    anything else.
    """
    wanted = {**_from_completion_kwargs(completion_kwargs or {}), **sampling}
    if is_external(model):
        from upcycle.external.agent import external_agent

        if version is not None:
            raise UpcycleError(f"agent {model!r} has no versions", "name its model: claude#MODEL")
        return external_agent(model, wanted)
    slug, at, pinned = model.partition("@v")
    if at:
        if version is not None or not pinned.isdigit():
            raise UpcycleError(
                f"model {model!r} names a version that cannot be used", "write <model>@v<number>"
            )
        version = int(pinned)
    unknown = sorted(set(wanted) - set(_SAMPLING))
    if unknown:
        raise UpcycleError(f"unknown sampling field {unknown[0]!r}", f"use {', '.join(_SAMPLING)}")
    return Agent(slug, version, wanted)


def _from_completion_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    flat = {
        **{key: value for key, value in kwargs.items() if key != "extra_body"},
        **kwargs.get("extra_body", {}),
    }
    asked = {key: value for key, value in flat.items() if key not in _ALWAYS_ON}
    if "max_tokens" in asked:
        asked["max_tokens_per_turn"] = asked.pop("max_tokens")
    return asked
