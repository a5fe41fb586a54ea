"""Seams. Environments have two implementations (forked here, or behind tcp); planned episodes and the model
registry have one, and a double in tests.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from episodes import Purpose
from scenario_runner.domain.environments import (
    EnvironmentDescription,
    EnvironmentSource,
    EpisodeToPlay,
    GeneratedTask,
    Grade,
    Message,
    TaskOrder,
    ToolOutcome,
)
from scenario_runner.domain.peer_facts import DurableFact, EngineFact, SessionFact
from scenario_runner.domain.recorded_sessions import GradedSession
from upcycle.environment.channel.client import AskJudge
from upcycle.environment.tools import ToolSpec
from upcycle.run_config import PolicyChoice
from upcycle.session_query import SessionQuery
from upcycle.states import StateEntry


class LiveEnvironment(Protocol):
    """One isolated environment with one started scenario."""

    @property
    def source_digest(self) -> str:
        """Of the code that runs; "" where it is not known."""

    @property
    def prompt(self) -> tuple[Message, ...]:
        """What the scenario yielded first."""

    @property
    def guidance(self) -> str:
        """The end of the prompt of a guided episode; "" of any other."""

    @property
    def guidance_parts(self) -> Mapping[str, str]:
        """The same by kind, in its order."""

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What the policy may call."""

    @property
    def first_state(self) -> StateEntry | None:
        """Of the environment at the prompt; None where it declares none."""

    async def last_state(self) -> StateEntry:
        """The same before the grade. Never raises: what failed is its note."""

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], *, limit_s: float | None = None
    ) -> ToolOutcome:
        """Raises PolicyFault, also where the call takes longer than limit_s, EnvironmentLost, EpisodeFault.
        What a tool raises is an outcome."""

    async def grade(self, answer: str, transcript: Mapping[str, Any], judge: AskJudge | None = None) -> Grade:
        """judge: asks what the scenario's judges ask. Raises EpisodeFault, EpisodeTimeout, EnvironmentLost,
        PolicyFault, and what judge raises that is no UpcycleError."""

    async def close(self) -> None:
        """End it with everything it started. Idempotent."""


class EnvironmentHost(Protocol):
    """Where environments run."""

    async def start(self, episode: EpisodeToPlay) -> LiveEnvironment:
        """Raises EpisodeFault, EpisodeTimeout, EnvironmentBroken, EnvironmentLost."""

    async def describe(self, source: EnvironmentSource) -> EnvironmentDescription:
        """Load an environment without playing it. Raises EnvironmentBroken."""


class GeneratorHost(Protocol):
    """Where generators of environments run."""

    async def generate(self, order: TaskOrder) -> GeneratedTask:
        """Have a new task made. Raises EpisodeFault, EpisodeTimeout, EnvironmentBroken, EnvironmentLost."""


class PlannedEpisodes(Protocol):
    """Which episodes are planned and have no result yet."""

    async def to_play(self, episode_id: str) -> EpisodeToPlay:
        """Raises EpisodeNotOpen for one that is unknown or settled."""

    async def opened(self, episode_ids: Sequence[str]) -> None:
        """Note that the environments of these episodes were started."""


class Registry(Protocol):
    """What the planner asks checkpoint_registry."""

    async def check_policy(self, policy: PolicyChoice) -> None:
        """Raises NotFound for an unknown model or version, Refused for a removed one, Unavailable."""

    async def head_version(self, model: str) -> int:
        """The promoted version, from which a training run starts. Raises NotFound, Unavailable."""


class RecordedSessions(Protocol):
    """What the planner asks trajectory_store about sessions that the gateway recorded."""

    async def graded(self, model: str, query: SessionQuery) -> Sequence[GradedSession]:
        """Those of a model that match, and that no step trained. Raises Refused for too many of them,
        Unavailable."""


class RunPeers(Protocol):
    """What other services know about a run; None when a service does not answer in time."""

    async def engines(self, model: str) -> Sequence[EngineFact] | None:
        """Engines of a model that are up."""

    async def ledger(self, run_id: str) -> Mapping[str, int] | None:
        """Episodes by ledger state."""

    async def session(self, run_id: str) -> SessionFact | None:
        """What the trainer has of a run."""

    async def durables(self, purpose: Purpose, model: str) -> Mapping[str, DurableFact]:
        """Those that could be read, by role."""

    async def reward_alarms(self, run_id: str) -> Sequence[str]:
        """Open alarms of the monitors of reward hacks, one sentence each."""

    async def waiting_candidates(self, model: str, run_id: str) -> Sequence[str]:
        """Checkpoints of a run that passed their gate and wait until their alarms are known."""

    async def num_confirmed(self, run_id: str, top: int) -> int | None:
        """How many of the run's `top` highest-rewarded trajectories a person confirmed."""


class Lineages(Protocol):
    """What checkpoint_registry has that goes back to a taskset."""

    async def of_taskset(self, taskset: str, run_ids: Collection[str]) -> Sequence[str]:
        """Gates that judge by a taskset, checkpoints that were judged by it or come from runs on it: each in
        a few words. Raises Unavailable."""
