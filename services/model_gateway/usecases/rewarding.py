"""A client gives its recorded session a reward: the session is closed, and the grader decides."""

from dataclasses import replace

from model_gateway.adapters.grading import RemoteGrading
from model_gateway.domain.rewards import GradingUnavailable, SessionReward, StandingReward
from model_gateway.usecases.recording import CloseSessions
from upcycle.errors import Unavailable


class RewardSessions:
    """The reward may come late, and again: the first one stands."""

    def __init__(self, sessions: CloseSessions, grading: RemoteGrading) -> None:
        self._sessions = sessions
        self._grading = grading

    async def __call__(self, session_id: str, key_id: str, reward: SessionReward) -> StandingReward:
        """The reward that stands. Raises SessionNotFound, OtherReward, BadRequest, GradingUnavailable."""
        try:
            await self._sessions.owned(session_id, key_id)
            session = await self._sessions.close(session_id)
        except Unavailable as error:
            raise GradingUnavailable(f"session {session_id!r} cannot be closed now: {error}") from error
        stands = await self._grading.grade(session, reward)
        await self._sessions.graded(session)
        return replace(stands, unrecorded_calls=session.unrecorded_calls)
