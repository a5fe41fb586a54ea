"""PlayEpisode: open the environment, let policy and environment take turns, store the trajectory once.

Guarantees: an episode whose trajectory is stored is never sampled again; trouble outside the policy ends as a
typed failure or is raised as Unavailable, never as a low reward; an environment that the grader will not need
is closed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from engine_client import ContextOverflow
from environment_client import EnvironmentClient, EpisodeNotPlanned, OpenedEnvironment
from episodes import EpisodeBroken, EpisodeFailure
from rollout_sampler import telemetry, wire
from rollout_sampler.adapters.engines import LeasedEngines
from rollout_sampler.adapters.policies import PolicyFiles, PolicyFormat
from rollout_sampler.adapters.trajectories import StoredTrajectories
from rollout_sampler.domain import EpisodeTask, Failed, NotWanted, PlayOutcome, Recorded
from rollout_sampler.usecases.turns import EpisodePlayer, PlayLimits
from service_kit.deadlines import DeadlineExceeded, deadline
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody
from upcycle.retrying import retry


@dataclass(frozen=True, slots=True)
class SamplerDeps:
    """What an episode needs from outside the process."""

    environments: EnvironmentClient
    engines: LeasedEngines
    policies: PolicyFiles
    trajectories: StoredTrajectories


class PlayEpisode:
    """Plays one episode from its command to its stored trajectory."""

    def __init__(
        self,
        deps: SamplerDeps,
        limits: PlayLimits,
        *,
        now: Callable[[], datetime],
        new_nonce: Callable[[], str],
    ) -> None:
        """new_nonce: tells the tool calls of two plays of one episode apart."""
        self._deps = deps
        self._limits = limits
        self._now = now
        self._new_nonce = new_nonce

    async def __call__(self, task: EpisodeTask, *, may_be_stored: bool) -> PlayOutcome:
        """may_be_stored: the command came before, so look for its trajectory first. Raises Unavailable."""
        try:
            stored = await self._deps.trajectories.find_stored(task.identity) if may_be_stored else None
            if stored is not None:
                return stored
            version = await self._deps.engines.version_now(task.policy)
            form = await self._deps.policies.chat_format(task.policy.model, version)
            asked_at = self._now()
            environment = await self._deps.environments.open_episode(task.identity.episode_id)
        except EpisodeNotPlanned as error:
            return NotWanted(str(error))
        except EpisodeBroken as error:
            return Failed(error.kind, error.detail)
        body = wire.new_body(task, environment, asked_at, telemetry.current_traceparent())
        return await self._play_opened(task, environment, form, body)

    async def _play_opened(
        self, task: EpisodeTask, environment: OpenedEnvironment, form: PolicyFormat, body: TrajectoryBody
    ) -> PlayOutcome:
        grader_needs_it = False
        try:
            async with deadline(f"episode {task.identity.episode_id} to be played", self._time_left_s(task)):
                await self._play(task, environment, form, body)
            stored = await self._store(task, body)
            grader_needs_it = stored.body.lease_id == environment.lease.lease_id
            return stored
        except EpisodeBroken as error:
            return self._failed(body, error.kind, error.detail)
        except DeadlineExceeded as error:
            return self._failed(body, EpisodeFailure.TIMEOUT, str(error))
        finally:
            if not grader_needs_it:
                await self._deps.environments.close(environment.lease)

    def _failed(self, body: TrajectoryBody, kind: str, detail: str) -> Failed:
        wire.note_environment(body, self._now())
        return Failed(kind, detail, body.usage)

    def _time_left_s(self, task: EpisodeTask) -> float:
        """The planner sends the command again at the deadline: stop before it, but give a late start time."""
        if task.deadline is None:
            return self._limits.episode_s
        left_s = (task.deadline - self._now()).total_seconds()
        return min(self._limits.episode_s, max(self._limits.late_start_s, left_s))

    async def _play(
        self, task: EpisodeTask, environment: OpenedEnvironment, form: PolicyFormat, body: TrajectoryBody
    ) -> None:
        player = EpisodePlayer(task, environment, form, self._deps.engines, self._deps.environments)
        try:
            engine_id = await player.play_into(body, self._limits, self._new_nonce())
        except ContextOverflow as error:
            raise EpisodeBroken(EpisodeFailure.CONTEXT_OVERFLOW, str(error)) from error
        wire.end_body(body, self._now(), engine_id)

    async def _store(self, task: EpisodeTask, body: TrajectoryBody) -> Recorded:
        """Stores the trajectory; a short outage of the object store loses no episode. Raises Unavailable."""
        return await retry(
            lambda: self._deps.trajectories.store_first(task.identity, body),
            budget_s=self._limits.retry_s,
            max_pause_s=2.0,
        )
