"""Environments, leases on their processes, and how they fail: one class per reaction."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from blob_store import BlobRef
from episodes import EpisodeFailure
from upcycle.environment.tools import ToolSpec
from upcycle.judge_calls import JudgeQuestion, JudgeReply
from upcycle.states import StateEntry


@dataclass(frozen=True, slots=True)
class EpisodeTimeouts:
    """How long an environment's own code may take, in seconds, and how much a tool may return, in bytes."""

    start_s: float = 30.0
    tool_s: float = 30.0
    grade_s: float = 60.0
    tool_result_bytes: int = 256 * 1024


class RunnerError(Exception):
    """Base of this service's errors."""


class EpisodeError(RunnerError):
    """An episode cannot be played or graded. failure_kind: becomes the kind of `episode.failed`."""

    failure_kind: str = "error"


class EnvironmentBroken(EpisodeError):
    """The environment cannot be loaded at all. detail: the traceback of its import."""

    failure_kind = EpisodeFailure.ENVIRONMENT_BROKEN

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class SecretsWithheld(EnvironmentBroken):
    """MCP servers of the environment name secrets, and it is started without any."""

    def __init__(self, environment: str, named: Mapping[str, str]) -> None:
        """named: of each secret, the server."""
        which = ", ".join(f"{secret} (server {server})" for secret, server in named.items())
        super().__init__(
            f"environment {environment!r} needs secrets that only episodes of a run are given: {which}"
        )


class SourceChanged(EnvironmentBroken):
    """The environment's files are others than those that the episode's run is judged by."""


class EnvironmentLost(EpisodeError):
    """The episode's process, or the zygote it came from, is gone."""

    failure_kind = EpisodeFailure.ENVIRONMENT_LOST


class EnvironmentKilled(EnvironmentLost):
    """A signal killed the episode's process: the kernel's, for its memory, or somebody's."""


class FleetFull(EpisodeError):
    """As many environment processes run as may; ask again later."""

    failure_kind = "fleet_full"


class UnknownLease(EpisodeError):
    """No such lease: never given, lapsed, closed, or its process died."""

    failure_kind = EpisodeFailure.ENVIRONMENT_LOST


class EpisodeNotOpen(EpisodeError):
    """The episode is not planned, or has a result already: no run waits for it."""

    failure_kind = "not_planned"


class EpisodeFault(EpisodeError):
    """The environment's own code failed. failure_kind: scenario_error, external_failure, …"""

    def __init__(self, failure_kind: str, message: str) -> None:
        super().__init__(message)
        self.failure_kind = failure_kind


class EpisodeTimeout(EpisodeError):
    """The environment's code did not come back in time."""

    failure_kind = EpisodeFailure.TIMEOUT


class PolicyFault(EpisodeError):
    """The policy caused the failure: its call ended or blocked the environment, or the scenario fails on its
    answer alone. failure_kind: an attributable EpisodeFailure."""

    def __init__(self, failure_kind: EpisodeFailure, message: str) -> None:
        super().__init__(message)
        self.failure_kind = failure_kind


class BodyUnreadable(EpisodeError):
    """The stored trajectory that is to be graded is missing, or is not what its reference promises."""

    failure_kind = EpisodeFailure.BODY_CORRUPT


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """An environment declared in a file on this machine. attribute: which variable, "" for the only one."""

    name: str
    path: str
    attribute: str = ""


@dataclass(frozen=True, slots=True)
class TcpEnvironment:
    """An environment that is served on the control channel elsewhere. url: tcp://host:port."""

    name: str
    url: str


EnvironmentSource = PythonEnvironment | TcpEnvironment


@dataclass(frozen=True, slots=True)
class EnvironmentDescription:
    """What an environment says about itself. scenarios: name -> JSON schema of its arguments. source_digest:
    of the code that said it; "" where it is not known."""

    name: str
    version: str
    scenarios: Mapping[str, Mapping[str, Any]]
    tools: tuple[ToolSpec, ...]
    source_digest: str = ""
    guided: frozenset[str] = frozenset()
    """Names of the scenarios that declare guidance."""
    generating: frozenset[str] = frozenset()
    """Names of the scenarios that declare a generator."""
    proposers: Mapping[str, str] = field(default_factory=dict)
    """Scenarios whose tasks another one proposes, each with that one."""
    left_overs: frozenset[str] = frozenset()
    """Names of the scenarios that declare what a failed attempt leaves."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Of each secret that MCP servers name, the first server that does."""


@dataclass(frozen=True, slots=True)
class EpisodeToPlay:
    """Everything needed to start an episode's environment. failures_are_missing: in its run a failure that
    the policy caused is no 0. source_digest: of the code that judges its run; "": what lies there now.
    guided_after: the stored attempt after which the scenario guides; None: it does not. failed: what the
    scenario sees of it, `{"answer", "trajectory"}`, once it was read. without_secrets: an environment whose
    MCP servers name secrets is not started."""

    episode_id: str
    source: EnvironmentSource
    scenario: str
    args_json: str
    deadline: datetime
    failures_are_missing: bool = False
    source_digest: str = ""
    guided_after: BlobRef | None = None
    failed: Mapping[str, Any] | None = None
    without_secrets: bool = False


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """A new task that the generator of a scenario is to make. args_json: of the task that it is made of.
    solved: whether a whole group solved that, or none of a group did. source_digest: of the code that judges
    the run; "": what lies there now. proposal: an answer `{"answer", "trajectory"}` to that task, which
    proposes the new one (solved), or failed and leaves it; None: the generator makes it."""

    source: EnvironmentSource
    scenario: str
    seed: int
    args_json: str
    solved: bool
    source_digest: str = ""
    proposal: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class GeneratedTask:
    """What a generator made. schema: of its scenario's arguments, in the same code."""

    arguments: Mapping[str, Any]
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """A tool's result as the policy reads it. duration_s: seconds inside the environment. state: of the
    environment after the call; None where it declares none."""

    content: str
    is_error: bool
    truncated: bool
    duration_s: float
    state: StateEntry | None = None


@dataclass(frozen=True, slots=True)
class ScenarioTranscript:
    """What a scenario sees of an episode when it grades: the answer, and turns with text and tool calls."""

    episode_id: str
    answer: str
    trajectory: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Grade:
    """A reward and its tree. subscores: rows {name, weight, value, info?, children?}. failure: of the policy,
    for which the reward is 0. turn_rewards: one for each turn of the transcript, or none."""

    reward: float
    success: bool
    subscores: tuple[Mapping[str, Any], ...]
    info: Mapping[str, Any]
    duration_s: float
    failure: PolicyFault | None = None
    turn_rewards: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class JudgeAsked:
    """A grade waits for the answer of a judge."""

    question_id: str
    question: JudgeQuestion


@dataclass(frozen=True, slots=True)
class JudgeAnswer:
    """To one question. failure: no answer came, and the episode is missing. refusal: no judge of that name is
    asked."""

    question_id: str
    reply: JudgeReply
    failure: str = ""
    refusal: str = ""


Message = Mapping[str, str]
"""{"role", "content", "name"}: the texts of what a scenario yielded."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A lease: who holds lease_id may call tools and grade until expires_at. source_digest: of the code that
    runs; "" where it is not known. first_state: at the prompt; None where the environment declares none.
    guidance: the end of the prompt of a guided episode; guidance_parts: the same by kind."""

    lease_id: str
    prompt: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    expires_at: datetime
    source_digest: str = ""
    first_state: StateEntry | None = None
    guidance: str = ""
    guidance_parts: Mapping[str, str] = field(default_factory=dict)
