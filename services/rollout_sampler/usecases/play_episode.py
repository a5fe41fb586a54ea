"""PlayEpisode: open the environment, let policy and environment take turns, store the trajectory once.

Guarantees: an episode whose trajectory is stored is never sampled again; trouble outside the policy ends as a
typed failure or is raised as Unavailable, never as a low reward; a failure that the policy caused is stored
with its trajectory, which earns 0; an environment that the grader will not need is closed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from engine_client import ContextOverflow
from environment_client import EnvironmentClient, EpisodeNotPlanned, OpenedEnvironment
from episodes import EpisodeBroken, EpisodeFailure, policy_failure
from rollout_sampler import telemetry, wire
from rollout_sampler.adapters.engines import LeasedEngines
from rollout_sampler.adapters.policies import PolicyFiles, PolicyFormat
from rollout_sampler.adapters.trajectories import StoredTrajectories
from rollout_sampler.domain import EpisodeTask, Failed, NotWanted, PlayOutcome, Recorded
from rollout_sampler.usecases.turns import EpisodePlayer, PlayLimits
from service_kit.deadlines import DeadlineExceeded, deadline
from upcycle.api.trajectory.v1.trajectory_pb2 import STOP_REASON_FAILED, TrajectoryBody
from upcycle.retrying import retry

_UNGUIDED: Final = (
    "the episode is guided, and its environment opened without guidance: the fleet is of an older version; "
    "upgrade it, or train without guidance"
)
"""Among guided members one without would be compared with others."""


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
        if task.identity.guided_after and not environment.guidance:
            await self._deps.environments.close(environment.lease)
            return Failed(EpisodeFailure.ENVIRONMENT_BROKEN, _UNGUIDED)
        body = wire.new_body(task, environment, asked_at, telemetry.current_traceparent())
        return await self._play_opened(task, environment, form, body)

    async def _play_opened(
        self, task: EpisodeTask, environment: OpenedEnvironment, form: PolicyFormat, body: TrajectoryBody
    ) -> PlayOutcome:
        grader_needs_it = False
        try:
            player = EpisodePlayer(
                task,
                environment,
                form,
                self._deps.engines,
                self._deps.environments,
                time_s=self._time_left_s(task),
            )
            failure = await self._play(task, player, body)
            if failure is not None and not _is_zero(task, body, failure):
                return self._failed(body, failure)
            if failure is None:
                await player.note_last_state(body)
            self._end(body, player, failure)
            stored = await self._store(task, body)
            is_mine = stored.body.lease_id == environment.lease.lease_id
            grader_needs_it = is_mine and not stored.body.HasField("failure")
            return stored
        except EpisodeBroken as error:  # the stored trajectory of an earlier try cannot be read
            return self._failed(body, error)
        finally:
            if not grader_needs_it:
                await self._deps.environments.close(environment.lease)

    def _failed(self, body: TrajectoryBody, failure: EpisodeBroken) -> Failed:
        wire.note_environment(body, self._now())
        return Failed(failure.kind, failure.detail, body.usage)

    def _end(self, body: TrajectoryBody, player: EpisodePlayer, failure: EpisodeBroken | None) -> None:
        wire.end_body(body, self._now(), player.engine_id)
        if failure is not None:
            body.stop_reason, body.answer = STOP_REASON_FAILED, ""
            body.failure.CopyFrom(policy_failure(failure.kind, failure.detail))

    def _time_left_s(self, task: EpisodeTask) -> float:
        """Until the deadline, but give a late start time: no more than the planner waits for it."""
        if task.deadline is None:
            return self._limits.episode_s
        left_s = (task.deadline - self._now()).total_seconds()
        late_s = self._limits.late_start_s
        if task.time_s is not None and task.time_s > 0:
            late_s = min(late_s, task.time_s)
        return min(self._limits.episode_s, max(late_s, left_s))

    async def _play(
        self, task: EpisodeTask, player: EpisodePlayer, body: TrajectoryBody
    ) -> EpisodeBroken | None:
        """Why the episode ended without an answer to grade. Raises Unavailable."""
        try:
            async with deadline(f"episode {task.identity.episode_id} to be played", player.time_s):
                await player.play_into(body, self._limits, self._new_nonce())
        except EpisodeBroken as error:
            return error
        except ContextOverflow as error:
            return EpisodeBroken(EpisodeFailure.CONTEXT_OVERFLOW, str(error))
        except DeadlineExceeded as error:
            kind = EpisodeFailure.TOOL_TIMEOUT if player.is_mostly_tools else EpisodeFailure.TIMEOUT
            detail = f"{error}; {player.tools_s:.1f} s of it in tools that the policy called"
            return EpisodeBroken(kind, detail)
        return None

    async def _store(self, task: EpisodeTask, body: TrajectoryBody) -> Recorded:
        """Stores the trajectory; a short outage of the object store loses no episode. Raises Unavailable."""
        return await retry(
            lambda: self._deps.trajectories.store_first(task.identity, body),
            budget_s=self._limits.retry_s,
            max_pause_s=2.0,
        )


def _is_zero(task: EpisodeTask, body: TrajectoryBody, failure: EpisodeBroken) -> bool:
    """Whether an episode that failed counts as 0: the policy caused it, by a token that it sampled."""
    return failure.is_attributable and len(body.turns) > 0 and not task.failures_are_missing
