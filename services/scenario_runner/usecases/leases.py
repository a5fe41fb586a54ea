"""Leases on live environments: who may use which process, for how long, and what a repeated call gets.

Every call is idempotent: a tool call by its call id, a grade by its lease. An environment ends with its
grade, its close, or the end of its lease; the grade can be read until the lease ends, or thousands of others
have been graded since. An episode may be
opened twice, because its sampler died: the older lease stays usable, since a trajectory with it may be stored
already. A third `Open` ends the oldest lease.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from blob_store import BlobRef
from episodes import EpisodeFailure
from scenario_runner.adapters.stored_transcripts import ScenarioTranscripts
from scenario_runner.domain.environments import (
    BodyUnreadable,
    EnvironmentBroken,
    EnvironmentKilled,
    EnvironmentLost,
    EpisodeError,
    EpisodeFault,
    EpisodeTimeout,
    EpisodeToPlay,
    FleetFull,
    Grade,
    JudgeAnswer,
    JudgeAsked,
    Opened,
    PolicyFault,
    ScenarioTranscript,
    ToolOutcome,
    UnknownLease,
)
from scenario_runner.ports import EnvironmentHost, LiveEnvironment, PlannedEpisodes
from scenario_runner.usecases.judge_questions import JudgeQuestions
from scenario_runner.usecases.lease import Lease, called, refuse_blame
from upcycle.errors import Unavailable
from upcycle.states import StateEntry

log = logging.getLogger(__name__)

MAX_LEASES_PER_EPISODE = 2
MAX_ANSWER_S = 3600.0
"""The longest that a caller may take for a judge's answer."""
GRADER_WAIT_S = 60.0
"""How long an environment waits for its grader at least, also for an answer in the episode's last second."""
MAX_ENDED = 8192
"""Leases that are kept for their answers alone: half a minute of them at 250 episodes a second."""
_DRAIN_POLL_S = 0.05
_EMPTY_TRAJECTORY = {"turns": [{"text": "", "tool_calls": []}]}
"""Of an empty answer: a scenario that reads the last turn finds one."""


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """capacity: environments alive at once. ttl_s: seconds that a lease lasts, unless the episode's own
    deadline and GRADER_WAIT_S after it are later. max_ended: leases whose environment has ended; of more, the
    one that ended first goes."""

    capacity: int
    ttl_s: float
    max_ended: int = MAX_ENDED


class Leases:
    """All leases of one fleet replica."""

    def __init__(
        self,
        host: EnvironmentHost,
        episodes: PlannedEpisodes,
        transcripts: ScenarioTranscripts,
        rules: LeaseRules,
        *,
        now: Callable[[], datetime],
        new_id: Callable[[str], str],
    ) -> None:
        self._host = host
        self._episodes = episodes
        self._transcripts = transcripts
        self._rules = rules
        self._now = now
        self._new_id = new_id
        self._leases: dict[str, Lease] = {}
        self._by_episode: dict[str, list[str]] = {}
        self._ended: deque[str] = deque()
        """Leases whose environment has ended, the first one first; some are closed already."""
        self._starting = 0
        self._alive = 0
        self._is_draining = False
        self._last_asked = 0.0
        self._opened: list[str] = []

    @property
    def num_alive(self) -> int:
        """Environments that run or are being started."""
        return self._alive + self._starting

    async def open(self, episode_id: str) -> Opened:
        """Start an episode's environment and lease it.

        Raises EpisodeNotOpen, FleetFull, and what starting an environment raises.
        """
        if self._is_draining:
            raise FleetFull("this replica is being stopped and opens no more environments; ask again later")
        if self.num_alive >= self._rules.capacity:
            raise FleetFull(
                f"fleet full: {self.num_alive} environments are alive, limit {self._rules.capacity}; "
                "ask again later or raise SCENARIO_RUNNER_MAX_ENVIRONMENTS"
            )
        self._starting += 1
        try:
            episode = await self._episodes.to_play(episode_id)
            environment = await self._started(await self._with_failed(episode))
        finally:
            self._starting -= 1
        self._alive += 1
        last_answer = episode.deadline + timedelta(seconds=GRADER_WAIT_S)
        expires_at = max(last_answer, self._now() + timedelta(seconds=self._rules.ttl_s))
        lease = Lease(self._new_id("lease"), episode, environment, expires_at)
        self._leases[lease.lease_id] = lease
        self._opened.append(episode_id)
        await self._limit_leases_of(episode_id, lease.lease_id)
        return Opened(
            lease.lease_id,
            environment.prompt,
            environment.tools,
            expires_at,
            environment.source_digest,
            environment.first_state,
            environment.guidance,
            environment.guidance_parts,
        )

    async def call_tool(
        self, lease_id: str, call_id: str, name: str, arguments_json: str, *, limit_s: float | None = None
    ) -> ToolOutcome:
        """Call a tool once per call id. What the tool refuses or raises is an outcome with is_error.

        limit_s: a longer call ends as the policy's failure; a repeat waits for the call of the first.
        Raises UnknownLease, PolicyFault, EnvironmentLost, EpisodeFault.
        """
        lease = self._known(lease_id)
        environment, call = self._live(lease), lease.calls.get(call_id)
        if call is None:
            running = called(environment, name, arguments_json, limit_s)
            call = asyncio.ensure_future(self._ending_on_failure(lease, running))
            lease.calls[call_id] = call
        # Shielded: a caller that gives up must not undo a call that its retry will ask for again.
        return await asyncio.shield(call)

    async def last_state(self, lease_id: str) -> StateEntry:
        """The environment's state before the grade, read once. Raises UnknownLease."""
        lease = self._known(lease_id)
        if lease.last_state is None:
            lease.last_state = asyncio.ensure_future(self._live(lease).last_state())
        return await asyncio.shield(lease.last_state)

    async def grade(self, lease_id: str, body: BlobRef) -> Grade:
        """Grade the stored trajectory once; every later call gets the first result, or the first failure. The
        lease lasts for a whole term from the first call on.

        A scenario that fails is played again by a fresh instance, with an empty answer. If that is graded,
        the failure is the policy's: a grade of 0, or PolicyFault in a run where it is missing.
        A body that cannot be read is no result: the next call reads it again.
        Raises UnknownLease, BodyUnreadable, Unavailable, EpisodeError.
        """
        lease = self._known(lease_id)
        grading = await self._grading(lease, body, None)
        if lease.questions is not None and await lease.questions.asked(grading) is not None:
            raise Unavailable("a reward grader that asks judges: another one began this grade")
        return await asyncio.shield(grading)

    async def grade_judged(
        self, lease_id: str, body: BlobRef, answer: JudgeAnswer | None, *, answers_within_s: float
    ) -> Grade | JudgeAsked:
        """The same for a caller that asks judges: the grade, or the question that it waits for.

        The lease lasts answers_within_s longer, so that the environment is there when the answer comes. A
        repeat gets the question that waits, and an answer that was given already changes nothing.
        """
        lease = self._known(lease_id)
        longer_s = self._rules.ttl_s + min(max(0.0, answers_within_s), MAX_ANSWER_S)
        lease.expires_at = max(lease.expires_at, self._now() + timedelta(seconds=longer_s))
        grading = await self._grading(lease, body, JudgeQuestions())
        if lease.questions is not None and answer is not None:
            lease.questions.answer(answer)
        asked = None if lease.questions is None else await lease.questions.asked(grading)
        return await asyncio.shield(grading) if asked is None else asked

    async def close(self, lease_id: str) -> None:
        """End the environment and forget the lease. Closing what is gone already is fine."""
        lease = self._leases.pop(lease_id, None)
        if lease is not None:
            self._by_episode[lease.episode_id].remove(lease_id)
            if not self._by_episode[lease.episode_id]:
                del self._by_episode[lease.episode_id]
            lease.is_closed = not lease.ended
            await self._end(lease)

    async def expire(self) -> int:
        """End every lease that lapsed; returns how many environments that ended."""
        now = self._now()
        overdue = [lease for lease in self._leases.values() if lease.expires_at <= now]
        abandoned = [lease for lease in overdue if not lease.ended]
        for lease in abandoned:
            log.warning("lease_lapsed", extra={"lease_id": lease.lease_id, "episode_id": lease.episode_id})
        await asyncio.gather(*(self.close(lease.lease_id) for lease in overdue))
        return len(abandoned)

    async def drain(self, limit_s: float) -> None:
        """Open nothing more, and let episodes that are being played end: for `limit_s` seconds, or until no
        environment was asked for anything for a third of them."""
        self._is_draining = True
        loop = asyncio.get_running_loop()
        began = self._last_asked = loop.time()
        while self.num_alive and loop.time() < min(began + limit_s, self._last_asked + limit_s / 3):
            await asyncio.sleep(_DRAIN_POLL_S)
        if self.num_alive:
            log.warning("environments_cut_off", extra={"environments": self.num_alive, "limit_s": limit_s})

    async def close_all(self) -> None:
        """At shutdown."""
        await asyncio.gather(*(self.close(lease_id) for lease_id in list(self._leases)))

    def take_opened(self) -> list[str]:
        """Episodes opened since the last call, to be noted in one transaction."""
        opened, self._opened = self._opened, []
        return opened

    async def _with_failed(self, episode: EpisodeToPlay) -> EpisodeToPlay:
        """With the attempt after which its scenario guides; no lease keeps that. Raises BodyUnreadable,
        Unavailable."""
        if episode.guided_after is None:
            return episode
        read = await self._transcripts.read(episode.guided_after)
        return replace(episode, failed={"answer": read.answer, "trajectory": read.trajectory})

    async def _started(self, episode: EpisodeToPlay) -> LiveEnvironment:
        """The scenario at its prompt. One that fails before it is started once more, at once.

        Raises EnvironmentBroken where it fails again, because it fails each time; and what starting raises.
        """
        try:
            return await self._host.start(episode)
        except EpisodeFault as error:
            if error.failure_kind != EpisodeFailure.SCENARIO_ERROR:
                raise
        try:
            return await self._host.start(episode)
        except EpisodeFault as again:
            if again.failure_kind != EpisodeFailure.SCENARIO_ERROR:
                raise
            raise EnvironmentBroken(f"the scenario fails before its prompt, each time: {again}") from again

    async def _grading(
        self, lease: Lease, body: BlobRef, questions: JudgeQuestions | None
    ) -> "asyncio.Future[Grade]":
        """The grading of a lease, which the first call begins. questions: where those to judges wait, if
        that call asks judges."""
        if lease.grading is None:
            self._live(lease)
            transcript = await self._transcripts.read(body)
            if transcript.episode_id != lease.episode_id:
                raise BodyUnreadable(
                    f"trajectory body {body.key!r} is of episode {transcript.episode_id!r}, the lease is of "
                    f"{lease.episode_id!r}; grade the body that was recorded with this lease"
                )
            if lease.grading is None:  # another call may have begun to grade meanwhile
                environment = self._live(lease)
                lease.expires_at = max(lease.expires_at, self._now() + timedelta(seconds=self._rules.ttl_s))
                lease.questions = questions
                lease.grading = asyncio.ensure_future(self._grade(lease, environment, transcript))
                lease.grading.add_done_callback(lease.keep_result)
        return lease.grading

    async def _grade(
        self, lease: Lease, environment: LiveEnvironment, transcript: ScenarioTranscript
    ) -> Grade:
        try:
            return await self._graded(lease, environment, transcript)
        finally:
            lease.calls.clear()  # from now on only its grade is asked for again
            lease.last_state = None
            await self._end(lease)

    async def _graded(
        self, lease: Lease, environment: LiveEnvironment, transcript: ScenarioTranscript
    ) -> Grade:
        judge = None if lease.questions is None else lease.questions.ask
        try:
            return await environment.grade(transcript.answer, transcript.trajectory, judge)
        except PolicyFault as error:
            refuse_blame(lease, error)
            fault = error
        except (EpisodeFault, EpisodeTimeout, EnvironmentKilled) as error:
            if error.failure_kind == EpisodeFailure.EXTERNAL_FAILURE:
                raise
            refuse_blame(lease, error)
            await environment.close()
            await self._check_fresh_instance(lease, error)
            fault = PolicyFault(EpisodeFailure.ANSWER_ERROR, f"{error.failure_kind}: {error}")
        if lease.episode.failures_are_missing:
            raise fault
        return Grade(0.0, False, (), {}, 0.0, fault)

    async def _check_fresh_instance(self, lease: Lease, first: EpisodeError) -> None:
        """Have a fresh instance of the scenario grade an empty answer, in the slot of the one that failed.

        Raises EnvironmentBroken when it fails as well, and what is missing: EnvironmentLost, and EpisodeFault
        of the outside world.
        """
        try:
            fresh = await self._host.start(lease.episode)
            try:
                await fresh.grade(
                    "", _EMPTY_TRAJECTORY, None if lease.questions is None else lease.questions.ask
                )
            finally:
                await fresh.close()
        except EpisodeError as again:
            is_lost = isinstance(again, EnvironmentLost) and not isinstance(again, EnvironmentKilled)
            if is_lost or again.failure_kind == EpisodeFailure.EXTERNAL_FAILURE:
                raise
            refuse_blame(lease, again)
            raise EnvironmentBroken(
                f"the scenario fails on an empty answer too: {again}\nand failed on the policy's: {first}"
            ) from again

    async def _ending_on_failure(self, lease: Lease, call: Awaitable[ToolOutcome]) -> ToolOutcome:
        try:
            return await call
        except EpisodeError as error:
            await self._end(lease)
            refuse_blame(lease, error)
            raise
        except BaseException:
            await self._end(lease)
            raise

    async def _end(self, lease: Lease) -> None:
        environment, lease.environment = lease.environment, None
        if environment is not None:
            self._alive -= 1
            if lease.questions is not None:
                lease.questions.close()
            try:
                await environment.close()
            except Exception:  # no other lease, and no grade, depends on how this environment ends
                log.exception("environment_not_closed", extra={"lease_id": lease.lease_id})
            self._ended.append(lease.lease_id)
            while len(self._ended) > self._rules.max_ended:
                await self.close(self._ended.popleft())

    async def _limit_leases_of(self, episode_id: str, lease_id: str) -> None:
        lease_ids = self._by_episode.setdefault(episode_id, [])
        lease_ids.append(lease_id)
        if len(lease_ids) > MAX_LEASES_PER_EPISODE:
            await self.close(lease_ids[0])

    def _known(self, lease_id: str) -> Lease:
        self._last_asked = asyncio.get_running_loop().time()
        lease = self._leases.get(lease_id)
        if lease is None or lease.expires_at <= self._now():
            raise UnknownLease(f"no lease {lease_id!r}: it lapsed, was closed, or its replica was restarted")
        return lease

    def _live(self, lease: Lease) -> LiveEnvironment:
        """Its environment. Raises UnknownLease once the lease lapsed or the environment ended."""
        environment = self._known(lease.lease_id).environment
        if environment is None:
            raise UnknownLease(f"the environment of lease {lease.lease_id!r} has ended")
        return environment
