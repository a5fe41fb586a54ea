"""Budgets of an episode that is played here, from the names that a run has for them."""

from collections.abc import Mapping
from typing import Any

from upcycle.errors import UpcycleError
from upcycle.harness import TurnLimits
from upcycle.harness.chat import TokenBudgets
from upcycle.harness.context import POLICIES, STOP
from upcycle.playing.episode import MAX_TURNS, PlayLimits


def limits_of(sampling: Mapping[str, Any]) -> PlayLimits:
    """By default those of `upcycle play`. Raises UpcycleError for one below 1, and for an unknown context
    policy."""
    default = TokenBudgets()
    chosen = {
        "max_turns": MAX_TURNS,
        "max_tokens_per_turn": default.per_turn,
        "max_tokens_per_episode": default.per_episode,
        **{name: value for name, value in sampling.items() if value is not None},
    }
    for name in ("max_turns", "max_tokens_per_turn", "max_tokens_per_episode"):
        if chosen[name] < 1:
            raise UpcycleError(f"{name} is {chosen[name]}", "give at least 1")
    context = sampling.get("context") or STOP
    if context not in POLICIES:
        raise UpcycleError(f"context is {context!r}", f"use {' or '.join(POLICIES)}")
    budgets = TokenBudgets(chosen["max_tokens_per_turn"], chosen["max_tokens_per_episode"], context)
    return PlayLimits(TurnLimits(chosen["max_turns"]), budgets)
