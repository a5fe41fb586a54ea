"""GradeTrajectory: the environment grades a stored trajectory, extra graders add; only valid numbers count.

Guarantee: an outage is raised as Unavailable or ends as a typed failure, never as a low reward.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from environment_client import EnvironmentClient, ReplicaUnreachable
from episodes import EpisodeBroken, EpisodeFailure
from reward_grader import wire
from reward_grader.adapters.transcripts import GraderTranscripts
from reward_grader.domain import (
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

log = logging.getLogger(__name__)


class GradeTrajectory:
    """Turns one recorded trajectory into a reward."""

    def __init__(
        self,
        environments: EnvironmentClient,
        transcripts: GraderTranscripts,
        extras: ExtraGraders,
        *,
        gone_after_s: float,
        now: Callable[[], datetime],
    ) -> None:
        """gone_after_s: how long after its record an unreachable environment counts as lost."""
        self._environments = environments
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
        own = _valid(wire.grade_from_wire(await self._environments.grade(task.lease, task.body)))
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
        except Exception as error:
            log.exception("extra_grader_failed", extra={"grader": grader.name})
            detail = f"grader {grader.name}: {type(error).__name__}: {error}"
            raise EpisodeBroken(EpisodeFailure.GRADER_ERROR, detail) from error
        return Subscore(grader.name, grader.weight, float(value))


def _valid(grade: Grade) -> Grade:
    if (why := why_invalid(grade)) is not None:
        raise EpisodeBroken(EpisodeFailure.REWARD_INVALID, why)
    return grade
