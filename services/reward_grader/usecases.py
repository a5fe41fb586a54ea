"""GradeTrajectory: the environment grades a stored trajectory, extra graders add; only valid numbers count.

Guarantee: an outage is raised as Unavailable or ends as a typed failure, never as a low reward.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import datetime

from environment_client import EnvironmentClient, JudgeAnswer, JudgeAsked, ReplicaUnreachable
from episodes import EpisodeBroken, EpisodeFailure
from reward_grader import telemetry, wire
from reward_grader.adapters.judge_places import NotAsked
from reward_grader.adapters.judges import JudgeServers
from reward_grader.adapters.transcripts import GraderTranscripts
from reward_grader.domain import (
    ASKING_S,
    CannotGrade,
    ExtraGrader,
    ExtraGraders,
    Grade,
    Graded,
    GradeOutcome,
    GraderTranscript,
    GradingTask,
    Subscore,
    combined,
    why_invalid,
)
from service_kit.deadlines import DeadlineExceeded, deadline
from service_kit.errors import as_errors
from upcycle.api.environment.v1.service_pb2 import GradeResponse
from upcycle.errors import InfrastructureError, JudgeRefused, RewardInvalid, Unavailable
from upcycle.rewards import unit_interval

log = logging.getLogger(__name__)


class JudgedGrades:
    """The environment's own grade of a trajectory. What its judges ask is asked here: no key, no address and
    no connection is in the episode."""

    def __init__(
        self, environments: EnvironmentClient, judges: JudgeServers | None, *, now: Callable[[], datetime]
    ) -> None:
        self._environments = environments
        self._judges = judges
        self._now = now

    async def __call__(self, task: GradingTask) -> GradeResponse:
        """Safe to repeat: the environment keeps its question until it is answered, and its grade. Raises
        Unavailable, EpisodeBroken."""
        if not (judges := self._judges):
            return await self._environments.grade(task.lease, task.body)
        within_s, until_s = judges.limits.answer_s, time.monotonic() + ASKING_S
        answer = None
        while True:
            outcome = await self._environments.grade_judged(
                task.lease, task.body, answer, answers_within_s=within_s
            )
            if not isinstance(outcome, JudgeAsked):
                return outcome
            if time.monotonic() > until_s:
                raise Unavailable("further answers of the judges that this scenario asks", 0.0)
            answer = await self._answer(judges, task, outcome)

    async def _answer(self, judges: JudgeServers, task: GradingTask, asked: JudgeAsked) -> JudgeAnswer:
        """What the judge says, or why it says nothing. Raises Unavailable while it may still come back."""
        try:
            reply = await judges.ask(asked.question)
        except JudgeRefused as error:
            telemetry.JUDGED.labels("refused").inc()
            return JudgeAnswer(asked.question_id, refusal=str(error))
        except Unavailable as error:
            telemetry.JUDGED.labels("waits" if isinstance(error, NotAsked) else "unavailable").inc()
            age_s = (self._now() - task.published_at).total_seconds()
            # A record that waited long for a judge that answers others is not missing yet.
            gone_s = min(age_s, error.away_s) if isinstance(error, NotAsked) else age_s
            if gone_s < judges.limits.gone_after_s:
                raise
            return JudgeAnswer(asked.question_id, failure=f"{error}, {age_s:.0f} s after the record")
        except InfrastructureError as error:
            telemetry.JUDGED.labels("failed").inc()
            return JudgeAnswer(asked.question_id, failure=str(error))
        telemetry.JUDGED.labels("answered").inc()
        telemetry.JUDGE_TOKENS.labels("prompt").inc(reply.prompt_tokens)
        telemetry.JUDGE_TOKENS.labels("completion").inc(reply.completion_tokens)
        return JudgeAnswer(asked.question_id, reply)


class GradeTrajectory:
    """Turns one recorded trajectory into a reward."""

    def __init__(
        self,
        environments: EnvironmentClient,
        transcripts: GraderTranscripts,
        extras: ExtraGraders,
        judges: JudgeServers | None = None,
        *,
        gone_after_s: float,
        now: Callable[[], datetime],
    ) -> None:
        """gone_after_s: how long after its record an unreachable environment counts as lost."""
        self._environments = environments
        self._own_grade = JudgedGrades(environments, judges, now=now)
        self._transcripts = transcripts
        self._extras = extras
        self._gone_after_s = gone_after_s
        self._now = now

    async def __call__(self, task: GradingTask) -> GradeOutcome:
        """Safe to repeat: the environment keeps its first answer. Raises Unavailable."""
        try:
            grade = await self._graded(task)
        except ReplicaUnreachable as error:
            # A replica may restart, but the environments of one that stays unavailable are lost.
            age_s = (self._now() - task.published_at).total_seconds()
            if age_s < self._gone_after_s:
                raise
            return CannotGrade(
                EpisodeFailure.ENVIRONMENT_LOST, f"{error.waiting_for} did not answer for {age_s:.0f} s"
            )
        except EpisodeBroken as error:
            return CannotGrade(error.kind, error.detail)
        return Graded(grade)

    async def release(self, task: GradingTask) -> None:
        """Close the environment of an episode whose failure is published."""
        await self._environments.close(task.lease)

    async def _graded(self, task: GradingTask) -> Grade:
        if task.failure is not None:
            return Grade(0.0, False, failure=task.failure)
        # The environment ends with its grade, so that which may have to wait comes first.
        transcript = await self._transcripts.read_body(task) if self._extras.graders else None
        own = _valid(wire.grade_from_wire(await self._own_grade(task)))
        if transcript is None or own.failure is not None:
            return own
        scores = await asyncio.gather(*(self._score(grader, transcript) for grader in self._extras.graders))
        return _valid(combined(own, self._extras.environment_weight, scores))

    async def _score(self, grader: ExtraGrader, transcript: GraderTranscript) -> Subscore:
        """The score of one extra grader. One that raises has failed; it has not scored 0."""
        try:
            with as_errors():
                async with deadline(f"grader {grader.name}", self._extras.timeout_s):
                    value = await grader.score(transcript)
        except DeadlineExceeded as error:
            raise EpisodeBroken(EpisodeFailure.GRADER_ERROR, str(error)) from error
        except RewardInvalid as error:  # of a grader of the SDK, which looks at its score itself
            detail = f"grader {grader.name}: {error}"
            raise EpisodeBroken(EpisodeFailure.REWARD_INVALID, detail) from error
        except Exception as error:
            log.exception("extra_grader_failed", extra={"grader": grader.name})
            detail = f"grader {grader.name}: {type(error).__name__}: {error}"
            raise EpisodeBroken(EpisodeFailure.GRADER_ERROR, detail) from error
        try:
            return Subscore(grader.name, grader.weight, unit_interval(value, f"grader {grader.name}: score"))
        except RewardInvalid as error:
            raise EpisodeBroken(EpisodeFailure.REWARD_INVALID, str(error)) from error


def _valid(grade: Grade) -> Grade:
    if (why := why_invalid(grade)) is not None:
        raise EpisodeBroken(EpisodeFailure.REWARD_INVALID, why)
    return grade
