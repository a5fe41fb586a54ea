"""Stored trajectories by id, from the trajectory store."""

from __future__ import annotations

from episodes.identity import SPLITS
from grpc_edge import Peer
from grpo_trainer import wire
from grpo_trainer.domain.errors import UnknownTrajectory
from grpo_trainer.interactive.deps import StoredTrajectory
from grpo_trainer.interactive.wire import conversation_of_body
from upcycle.api.trajectory.v1.service_pb2 import GetTrajectoryRequest
from upcycle.api.trajectory.v1.service_pb2_grpc import TrajectoryServiceStub
from upcycle.api.trajectory.v1.trajectory_pb2 import LEDGER_STATE_CLIENT_GRADED
from upcycle.rpc import RemoteError, peer_errors


class PlatformTrajectories:
    """Reads trajectories over gRPC. train_parse_errors: also train turns that could not be parsed."""

    IDEMPOTENT = ("GetTrajectory",)

    def __init__(self, trajectories: Peer, *, train_parse_errors: bool) -> None:
        self._stub = TrajectoryServiceStub(trajectories.channel)
        self._address = trajectories.address
        self._train_parse_errors = train_parse_errors

    async def get(self, trajectory_id: str) -> StoredTrajectory:
        """One trajectory. Raises UnknownTrajectory; Unavailable."""
        try:
            with peer_errors(f"the trajectory store at {self._address}"):
                reply = await self._stub.GetTrajectory(GetTrajectoryRequest(trajectory_id=trajectory_id))
        except RemoteError as error:
            raise UnknownTrajectory(f"trajectory {trajectory_id!r} cannot be used: {error}") from error
        summary, episode = reply.summary, reply.body.episode
        if episode.split not in SPLITS:
            raise UnknownTrajectory(
                f"trajectory {trajectory_id!r} cannot be used: its split is {episode.split}, known are "
                f"{[*SPLITS]}; whether it may train is unknown"
            )
        graded = summary.reward if summary.graded else None
        if summary.ledger.state == LEDGER_STATE_CLIENT_GRADED:  # its run is none that a planner knows
            said = conversation_of_body(reply.body)
            return StoredTrajectory(said, graded, episode.task_digest, SPLITS[episode.split])
        return StoredTrajectory(
            wire.tokens_of_body(reply.body, train_parse_errors=self._train_parse_errors),
            graded,
            episode.task_digest,
            SPLITS[episode.split],
            run_id=episode.run_id,
            group_id=episode.group_id,
        )
