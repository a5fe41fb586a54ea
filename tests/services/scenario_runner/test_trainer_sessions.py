"""What the planner reads of the trainer's sessions: the one of a run, and the open one before it."""

from typing import Any, cast

import pytest

from scenario_runner.adapters.peers import PeerFacts
from upcycle.api.training.v1 import service_pb2 as pb
from upcycle.api.training.v1 import training_pb2 as training


class Sessions:
    """A trainer with these sessions."""

    def __init__(self, *sessions: training.TrainingSession) -> None:
        self._sessions = sessions

    async def GetSession(self, request: pb.GetSessionRequest, timeout: float) -> pb.GetSessionResponse:
        (found,) = [one for one in self._sessions if one.run_id == request.run_id]
        return pb.GetSessionResponse(session=found)

    async def ListSessions(self, request: pb.ListSessionsRequest, timeout: float) -> pb.ListSessionsResponse:
        return pb.ListSessionsResponse(sessions=self._sessions)


def session(run_id: str, state: str, model: str = "m", step: int = 0) -> training.TrainingSession:
    number = training.SessionState.Value(f"SESSION_STATE_{state}")
    kind = training.SESSION_KIND_RUN
    return training.TrainingSession(run_id=run_id, model=model, kind=kind, state=number, step=step)


@pytest.mark.parametrize(
    ("others", "behind"),
    [
        ([session("run-0", "WAITING", step=4)], "run-0"),
        ([session("run-0", "FINISHED"), session("run-1", "FAILED"), session("run-3", "STEPPING")], "run-3"),
        ([session("run-0", "STEPPING", model="another")], ""),
        ([], ""),
    ],
)
async def test_the_open_run_before_a_session_is_found(
    others: list[training.TrainingSession], behind: str
) -> None:
    peers = object.__new__(PeerFacts)
    peers._training = cast(Any, Sessions(*others, session("run-2", "WAITING")))
    found = await peers.session("run-2")
    assert found is not None
    assert found.behind == behind


async def test_a_state_that_only_a_newer_trainer_knows_is_unknown() -> None:
    newer = session("run-2", "STEPPING", step=7)
    newer.state = cast(Any, 99)
    peers = object.__new__(PeerFacts)
    peers._training = cast(Any, Sessions(newer))
    found = await peers.session("run-2")
    assert found is not None
    assert (found.state, found.step) == ("unknown", 7)
