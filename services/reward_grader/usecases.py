"""GradeTrajectory: read the record, ask its environment, add extra graders, believe only valid numbers.

Guarantee: an outage is a named wait or a typed failure, never a low reward.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from reward_grader.domain import (
    CannotGrade,
    FailureKind,
    Grade,
    Graded,
    GradeLater,
    GradeOutcome,
    GradingTask,
    Subscore,
    Transcript,
    combined,
    why_invalid,
)
from reward_grader.ports import (
    EnvironmentAway,
    Environments,
    EpisodeBroken,
    ExtraGrader,
    Transcripts,
    Unavailable,
)
from service_kit import DeadlineExceeded, deadline

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rubric:
    """Which graders count and how much; without extras the environment's reward is the reward."""

    environment_weight: float = 1.0
    extras: tuple[ExtraGrader, ...] = ()
    extra_timeout_s: float = 30.0


class GradeTrajectory:
    """Turns one recorded trajectory into a reward."""

    def __init__(
        self,
        environments: Environments,
        transcripts: Transcripts,
        rubric: Rubric,
        *,
        gone_after_s: float,
        now: Callable[[], datetime],
    ) -> None:
        """`gone_after_s`: how long after its record an unreachable environment counts as lost."""
        self._environments = environments
        self._transcripts = transcripts
        self._rubric = rubric
        self._gone_after_s = gone_after_s
        self._now = now

    async def __call__(self, task: GradingTask) -> GradeOutcome:
        """Safe to repeat: the environment keeps its first answer."""
        try:
            transcript = await self._transcripts.read(task)
            own = await self._environments.grade(task, transcript)
            if (why := why_invalid(own)) is not None:
                return CannotGrade(FailureKind.REWARD_INVALID, why)
            grade = await self._with_extras(own, transcript)
        except EnvironmentAway as error:
            return self._away(task, error)
        except Unavailable as error:
            return GradeLater(error.delay_s, error.waiting_for)
        except EpisodeBroken as error:
            return CannotGrade(error.kind, error.detail)
        if (why := why_invalid(grade)) is not None:
            return CannotGrade(FailureKind.REWARD_INVALID, why)
        return Graded(grade)

    async def release(self, task: GradingTask) -> None:
        """The outcome is announced: nobody needs the environment any more."""
        await self._environments.close(task)

    def _away(self, task: GradingTask, error: EnvironmentAway) -> GradeOutcome:
        """A replica may restart, but the environments of one that stays away are gone with it."""
        age_s = (self._now() - task.published_at).total_seconds()
        if age_s < self._gone_after_s:
            return GradeLater(error.delay_s, error.waiting_for)
        return CannotGrade(
            FailureKind.ENVIRONMENT_LOST, f"{error.waiting_for} did not answer for {age_s:.0f} s"
        )

    async def _with_extras(self, own: Grade, transcript: Transcript) -> Grade:
        if not self._rubric.extras:
            return own
        scores: Sequence[Subscore] = await asyncio.gather(
            *(self._score(grader, transcript) for grader in self._rubric.extras)
        )
        return combined(own, self._rubric.environment_weight, scores)

    async def _score(self, grader: ExtraGrader, transcript: Transcript) -> Subscore:
        """One extra grader's word. One that raises has failed; it has not scored 0."""
        try:
            async with deadline(f"grader {grader.name}", self._rubric.extra_timeout_s):
                value = await grader.grade(transcript)
        except DeadlineExceeded as error:
            raise EpisodeBroken(FailureKind.GRADER_ERROR, str(error)) from error
        except Exception as error:
            log.exception("extra_grader_failed", extra={"grader": grader.name})
            detail = f"grader {grader.name}: {type(error).__name__}: {error}"
            raise EpisodeBroken(FailureKind.GRADER_ERROR, detail) from error
        return Subscore(grader.name, grader.weight, float(value))
