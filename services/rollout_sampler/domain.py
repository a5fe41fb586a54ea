"""An episode as the sampler plays it: what is asked, what was sampled, and how it ended.

Token ids and log-probabilities are plain lists that travel untouched from the engine to the stored body.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any, Final

from trajectory_body import body_key

_SEED_SPACE: Final = 2**31
_SEED_STRIDE: Final = 1_000_003


class Channel(IntEnum):
    """Which moving version an episode follows; numbers as on the wire."""

    LATEST = 1
    HEAD = 2
    CANDIDATE = 3


class StopReason(IntEnum):
    """Why an episode ended; numbers as on the wire."""

    ANSWERED = 1
    MAX_TURNS = 2
    MAX_TOKENS = 3


class FinishReason(IntEnum):
    """Why a completion ended; numbers as on the wire. An aborted request has no completion."""

    STOP = 1
    LENGTH = 2


class FailureKind(StrEnum):
    """The stable words of `episode.failed` that the sampler itself uses."""

    ENVIRONMENT_LOST = "environment_lost"
    SCENARIO_ERROR = "scenario_error"
    ENGINE_ERROR = "engine_error"
    TIMEOUT = "timeout"
    CONTEXT_OVERFLOW = "context_overflow"
    POLICY_UNREADABLE = "policy_unreadable"
    REQUEST_INVALID = "request_invalid"
    SAMPLER_ERROR = "sampler_error"


@dataclass(frozen=True, slots=True)
class PolicyWanted:
    """Which weights: a channel of a model, or exactly one version of it."""

    model: str
    channel: Channel = Channel.LATEST
    pinned_version: int | None = None

    def __str__(self) -> str:
        if self.pinned_version is not None:
            return f"{self.model}@v{self.pinned_version}"
        return f"{self.model} on channel {self.channel.name.lower()}"


@dataclass(frozen=True, slots=True)
class Budget:
    """How an episode is sampled and how much it may spend; tokens count prompt and completion together."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_turns: int = 8
    max_tokens_per_turn: int = 128
    max_tokens_per_episode: int = 2048
    seed: int | None = None

    def completion_limit(self, num_context_tokens: int) -> int:
        """Tokens that the next completion may have; 0 or less: the episode's budget is spent."""
        return min(self.max_tokens_per_turn, self.max_tokens_per_episode - num_context_tokens)

    def turn_seed(self, turn: int) -> int | None:
        """Seed of a turn's request: equal for every retry of it, another for each turn."""
        return None if self.seed is None else (self.seed * _SEED_STRIDE + turn * 8191) % _SEED_SPACE


@dataclass(frozen=True, slots=True)
class EpisodeTask:
    """One rollout to be done. `purpose` and `split` are wire numbers that pass through unread."""

    episode_id: str
    run_id: str
    group_id: str
    member: int
    group_size: int
    purpose: int
    split: int
    policy: PolicyWanted
    budget: Budget
    task_slug: str
    task_digest: str
    family: str
    deadline: datetime | None
    requested_at: datetime | None

    @property
    def trajectory_id(self) -> str:
        """Id of the record of this episode."""
        return f"traj-{self.episode_id}"

    @property
    def body_key(self) -> str:
        """Where the record is stored, written at most once."""
        return body_key(self.run_id, self.episode_id)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the policy asked for; `call_id` makes a retry harmless."""

    call_id: str
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the policy reads back."""

    call_id: str
    content: str
    is_error: bool
    duration_s: float


@dataclass(frozen=True, slots=True)
class ScenarioMessage:
    """One message of the prompt that the scenario yielded."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""

    def as_chat(self) -> dict[str, Any]:
        """The message in the shape that chat templates read."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
                for call in self.tool_calls
            ]
        if self.name:
            message["name"] = self.name
        return message


@dataclass(frozen=True, slots=True)
class OpenedEnvironment:
    """A running environment that waits for the policy. `tools` are OpenAI function specs."""

    lease_id: str
    address: str
    prompt: tuple[ScenarioMessage, ...]
    tools: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class TokenVersions:
    """Which policy produced `num_tokens` consecutive sampled tokens."""

    version: int
    weights_digest: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine sampled: as many ids as `logprobs` as num_tokens in the spans together."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: FinishReason
    versions: tuple[TokenVersions, ...]
    engine_id: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One policy completion and the environment's reply."""

    new_prompt_ids: Sequence[int]
    completion: Completion
    token_texts: Sequence[str]
    text: str
    tool_calls: tuple[ToolCall, ...]
    tool_results: tuple[ToolResult, ...]
    parse_error: str
    sampling_s: float
    tools_s: float
    started_s: float


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The whole record of a finished episode."""

    task: EpisodeTask
    environment: OpenedEnvironment
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    answer: str
    started_at: datetime
    ended_at: datetime
    traceparent: str


@dataclass(frozen=True, slots=True)
class StoredBody:
    """A claim check on the stored record."""

    key: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RecordedFacts:
    """What `trajectory.recorded` says beyond the task; equal for every writer that finds the same body."""

    body: StoredBody
    oldest_version: int
    newest_version: int
    stop_reason: int
    num_turns: int
    num_sampled_tokens: int
    lease_id: str
    environment_address: str
    engine_id: str
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class Recorded:
    """The body is stored: announce it."""

    facts: RecordedFacts


@dataclass(frozen=True, slots=True)
class Failed:
    """No reward will exist for this episode."""

    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class NotWanted:
    """The episode is settled or its run is over: nobody waits for it."""

    why: str


@dataclass(frozen=True, slots=True)
class TryLater:
    """Something that the episode needs is not there now; `waiting_for` names it."""

    delay_s: float
    waiting_for: str


PlayOutcome = Recorded | Failed | NotWanted | TryLater


def version_span(turns: Sequence[Turn]) -> tuple[int, int]:
    """Oldest and newest policy version that produced a token, both inclusive."""
    versions = [span.version for turn in turns for span in turn.completion.versions]
    return min(versions), max(versions)


def num_sampled_tokens(turns: Sequence[Turn]) -> int:
    """Tokens that the policy wrote."""
    return sum(len(turn.completion.token_ids) for turn in turns)


def clip_text(text: str, max_chars: int) -> str:
    """`text`, or its beginning and how much is missing: no reply can eat the episode's budget unseen."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n[{len(text) - max_chars} more characters were cut]"
