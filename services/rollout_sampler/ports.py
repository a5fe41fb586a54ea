"""What playing an episode needs from the outside, and how the outside may fail: one class per reaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from chat_format import ChatFormat
from rollout_sampler.domain import (
    Completion,
    EpisodeTask,
    OpenedEnvironment,
    PolicyWanted,
    RecordedFacts,
    ToolCall,
    ToolResult,
    Trajectory,
)


class SamplingError(Exception):
    """Base of what the ports raise; the text says thing, value and way out."""


class NotPlanned(SamplingError):
    """The planner does not wait for this episode (settled, cancelled or unknown)."""


class Unavailable(SamplingError):
    """Something is away for a while; `waiting_for` names it. The same call may succeed later."""

    def __init__(self, waiting_for: str, delay_s: float = 2.0) -> None:
        super().__init__(waiting_for)
        self.waiting_for = waiting_for
        self.delay_s = delay_s


class NoEngine(Unavailable):
    """No live engine serves the policy that the episode asks for."""


class EngineLost(SamplingError):
    """An engine broke the connection or answered nonsense: ask another one for the same tokens."""


class ContextFull(SamplingError):
    """The prompt does not fit the model's context; no engine of this model will take it."""


class EpisodeBroken(SamplingError):
    """This episode cannot be played; `kind` is the word of `episode.failed`."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class EnvironmentLost(EpisodeBroken):
    """The environment process or its lease is gone."""

    def __init__(self, detail: str) -> None:
        super().__init__("environment_lost", detail)


@dataclass(frozen=True, slots=True)
class PolicyFormat:
    """Tokenizer and template of a policy, and the text of each of its tokens alone."""

    chat: ChatFormat
    texts: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request to an engine: continue `prompt_ids` by at most `max_tokens`."""

    prompt_ids: Sequence[int]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int | None
    stop_token_ids: tuple[int, ...]


class Environments(Protocol):
    """Environment processes, each held by a lease."""

    async def open(self, episode_id: str) -> OpenedEnvironment:
        """Start the episode's scenario. Raises NotPlanned, Unavailable, EpisodeBroken."""

    async def call_tool(self, environment: OpenedEnvironment, call: ToolCall) -> ToolResult:
        """Run one tool; a repeat with the same call id has no second effect. Raises EpisodeBroken."""

    async def close(self, environment: OpenedEnvironment) -> None:
        """Let the process go. Never raises: a lease that cannot be closed lapses by itself."""


class Engine(Protocol):
    """One engine, chosen for one request."""

    @property
    def engine_id(self) -> str:
        """Name of its lease."""

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample once. Raises EngineLost, ContextFull, EpisodeBroken."""


class Engines(Protocol):
    """The engines that registry leases name."""

    async def pick(self, wanted: PolicyWanted) -> Engine:
        """The engine with the least in flight that serves `wanted`. Raises NoEngine."""

    def suspect(self, engine_id: str) -> None:
        """An engine failed: read the leases again before the next pick, and prefer others for a while."""


class Formats(Protocol):
    """Chat formats of policies."""

    async def of(self, wanted: PolicyWanted) -> PolicyFormat:
        """How a policy reads and writes. Raises NoEngine, Unavailable, EpisodeBroken."""


class Bodies(Protocol):
    """Stored records, each written at most once."""

    async def find(self, task: EpisodeTask) -> RecordedFacts | None:
        """Facts of the record that is already stored, or None. Raises Unavailable, EpisodeBroken."""

    async def keep(self, trajectory: Trajectory) -> RecordedFacts:
        """Store the record unless there is one; the facts are those of the stored one. Raises Unavailable."""
