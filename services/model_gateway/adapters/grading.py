"""The reward grader, which alone publishes grades."""

from typing import Final

from grpc_edge import Peer
from model_gateway.domain.errors import BadRequest
from model_gateway.domain.rewards import GradingUnavailable, OtherReward, SessionReward, StandingReward
from model_gateway.domain.sessions import Session, SessionNotFound
from model_gateway.wire import sessions as wire
from upcycle.api.trajectory.v1.service_pb2_grpc import GradingServiceStub
from upcycle.errors import Unavailable
from upcycle.rpc import CallTimedOut, RemoteConflict, RemoteError, RemoteNotFound, peer_errors

IDEMPOTENT: Final = ("GradeSession",)
_TIMEOUT_S: Final = 30.0


class RemoteGrading:
    """GradingService of the reward grader."""

    def __init__(self, peer: Peer) -> None:
        self._stub = GradingServiceStub(peer.channel)

    async def grade(self, session: Session, reward: SessionReward) -> StandingReward:
        """The grade that stands; the same again answers the same. Raises OtherReward, SessionNotFound,
        BadRequest, GradingUnavailable."""
        request = wire.grade_to_wire(session, reward)
        try:
            with peer_errors(f"grade session {session.session_id!r}"):
                stands = await self._stub.GradeSession(request, timeout=_TIMEOUT_S)
        except RemoteNotFound as error:
            raise SessionNotFound(session.session_id) from error
        except RemoteConflict as error:
            raise OtherReward(str(error)) from error
        except RemoteError as error:
            raise BadRequest(str(error)) from error
        except (Unavailable, CallTimedOut) as error:
            raise GradingUnavailable(f"the reward cannot be given now, send it again: {error}") from error
        return StandingReward(stands.trajectory_id, stands.group_id, stands.score, stands.success)
