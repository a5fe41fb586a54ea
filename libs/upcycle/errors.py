"""Errors of the SDK: one class per reaction of the caller.

`kind` is the stable word that travels on the control channel and in `episode.failed`; no code branches on
text.
"""

from typing import ClassVar


class UpcycleError(Exception):
    """Base of every error the SDK raises. `hint` says the way out."""

    kind: ClassVar[str] = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class DefinitionError(UpcycleError, TypeError):
    """An environment, tool, scenario or taskset is declared in a way that cannot work."""

    kind = "definition_invalid"


class ArgumentsInvalid(UpcycleError, ValueError):
    """Arguments of a tool or scenario do not fit its signature."""

    kind = "arguments_invalid"


class UnknownName(UpcycleError, LookupError):
    """No scenario, tool, task or capability of that name."""

    kind = "unknown_name"


class TasksetInvalid(UpcycleError, ValueError):
    """A taskset row is malformed, too large, or clashes with another."""

    kind = "taskset_invalid"


class ScenarioError(UpcycleError):
    """The scenario's own code raised, or broke the two-yield protocol."""

    kind = "scenario_error"


class RewardInvalid(UpcycleError, ValueError):
    """The scenario's second yield is not a usable reward."""

    kind = "reward_invalid"


class ToolFailed(UpcycleError):
    """A tool raised. The agent reads the text; the episode goes on."""

    kind = "tool_failed"
