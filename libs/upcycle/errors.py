"""Errors of the SDK: one class per reaction of the caller.

`kind` is the stable word that travels on the control channel and in `episode.failed`; no code branches on
text.
"""

from typing import ClassVar


class UpcycleError(Exception):
    """Base of every error the SDK raises. `hint` tells what to do about it."""

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


class SourceRefused(UpcycleError, ValueError):
    """A file of an environment's source is missing, too large, or lies outside its folder."""

    kind = "source_refused"


class ScenarioError(UpcycleError):
    """The scenario raised, or did not yield exactly twice."""

    kind = "scenario_error"


class RewardInvalid(UpcycleError, ValueError):
    """The second value that the scenario yielded is not a reward."""

    kind = "reward_invalid"


class ToolFailed(UpcycleError):
    """A tool raised. The agent reads the text; the episode goes on."""

    kind = "tool_failed"


class ToolExited(ToolFailed):
    """A tool called sys.exit: its author's mistake, which `upcycle check` names."""


class InfrastructureError(UpcycleError):
    """Something outside the environment failed, for example a database that it uses; no answer of
    the policy caused it. Raised by a scenario or by a tool, it makes the episode missing: played again, and
    never a 0.
    """

    kind = "external_failure"


class JudgeRefused(UpcycleError, LookupError):
    """Who drives the environment asks no judge of this name, now or later."""

    kind = "judge_refused"


class SourcesRefused(UpcycleError, ValueError):
    """The options about sources contradict each other, or name no evaluation that can train."""

    kind = "sources_refused"


class PortTaken(UpcycleError):
    """No server can listen there."""

    kind = "port_taken"


class Failed(UpcycleError):
    """It was asked for rightly, was begun, and did not succeed: exit status 1, not 2."""

    kind = "failed"


class Unavailable(UpcycleError):
    """A server, a store, an engine or a service does not answer now, or not yet; the same request may
    succeed later.

    The one class for this in the whole platform. A handler that raises it has its message redelivered after
    `retry_after_s` without counting a failure; an rpc that raises it ends as UNAVAILABLE;
    `upcycle.retrying.retry` tries again.
    """

    kind = "unavailable"

    def __init__(self, waiting_for: str, retry_after_s: float | None = None, *, hint: str = "") -> None:
        """waiting_for: what is awaited, in words that `upcycle why` can show. retry_after_s: None: the
        caller decides.
        """
        super().__init__(waiting_for, hint)
        self.waiting_for = waiting_for
        self.retry_after_s = retry_after_s
