"""The harness of an episode: a policy's turns are read, its tool calls run and answered, its budgets kept.

One loop for every player. The sampler drives it with tokens (`TurnDriver`), `upcycle play` and agents in this
process with chat messages (`ChatDriver`). Guarantee: the same turns get the same observations in both.
"""

from upcycle.harness.parsing import AssistantTurn, ToolCall, parse_turn
from upcycle.harness.turns import (
    Ending,
    StopReason,
    TakenTurn,
    ToolOutcome,
    TurnDriver,
    TurnLimits,
    play_turns,
)

__all__ = [
    "AssistantTurn",
    "Ending",
    "StopReason",
    "TakenTurn",
    "ToolCall",
    "ToolOutcome",
    "TurnDriver",
    "TurnLimits",
    "parse_turn",
    "play_turns",
]
