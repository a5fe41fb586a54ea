"""Agents: a name for the policy that plays, and how it is sampled."""

from collections.abc import Mapping
from typing import Any

from upcycle.errors import UpcycleError
from upcycle.external.naming import is_external
from upcycle.platform_agent import Agent

__all__ = ["Agent", "create_agent"]

_SAMPLING = (
    "temperature",
    "top_p",
    "max_turns",
    "max_tokens_per_turn",
    "max_tokens_per_episode",
    "seed",
    "thinking",
    "context",
)

# Fields of `completion_kwargs` that ask for what the platform records anyway.
_ALWAYS_ON = frozenset({"return_token_ids", "logprobs"})


def create_agent(
    model: str,
    *,
    version: int | None = None,
    completion_kwargs: Mapping[str, Any] | None = None,
    **sampling: Any,
) -> Agent:
    """An agent for a model slug; `incident@v12` pins a version, else head plays.

    Also for a model of others, with your own key: `claude`, `openai`, `gemini`, `openai_compatible`, each
    with an optional `#model`, or `openai:URL#model`; of `openai:URL` the server is asked for its only model
    when the agent plays, and one with several is refused. It plays in this process, and only evaluates.

    sampling: temperature, top_p, max_turns, max_tokens_per_turn, max_tokens_per_episode, seed, thinking,
    context (`stop` or `compress`).
    completion_kwargs: accepted for code written against chat completions: `temperature`, `top_p`,
    `max_tokens`, and `extra_body` with `return_token_ids`, which is always on here. Raises UpcycleError for
    anything else.
    """
    wanted = {**_from_completion_kwargs(completion_kwargs or {}), **sampling}
    if is_external(model):
        from upcycle.external.agent import external_agent  # its HTTP client: for its users alone

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
