"""Recorded sessions that got their reward, as the trajectory store lists them."""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from checkpoint_registry.domain.session_watch import GradedSession, play_of
from grpc_edge import Peer
from identities.entities import is_recorded_episode
from upcycle.api.trajectory.v1 import service_pb2
from upcycle.api.trajectory.v1.service_pb2_grpc import TrajectoryServiceStub
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectorySummary
from upcycle.moments import moment_of, timestamp
from upcycle.rpc import peer_errors

IDEMPOTENT: Final = ("ListTrajectories",)
MOST: Final = 20_000
"""Of one look. Older ones are left out."""
_PAGE: Final = 1000
_NOT_NAMED: Final = re.compile(r"session-(req-[0-9a-f]{20}|shadow:.*)")
"""Captured requests and shadows: no client named them, and no toss by their id chose the version."""


class GrpcGradedSessions:
    """Implements ports.GradedSessions."""

    def __init__(self, peer: Peer) -> None:
        self._stub = TrajectoryServiceStub(peer.channel)

    async def since(self, model: str, graded_since: datetime) -> list[GradedSession]:
        """In the order of their rewards. Raises Unavailable."""
        wanted = service_pb2.TrajectoryFilter(
            model=model, recorded_sessions=True, graded_since=timestamp(graded_since)
        )
        found: list[GradedSession] = []
        token = ""
        while len(found) < MOST:
            request = service_pb2.ListTrajectoriesRequest(filter=wanted, page_size=_PAGE, page_token=token)
            with peer_errors(f"list the graded sessions of {model}", ()):
                page = await self._stub.ListTrajectories(request)
            found += _counted(page.trajectories)
            token = page.next_page_token
            if not token:
                break
        return sorted(found, key=lambda one: (one.graded_at, one.trajectory_id))


def _counted(summaries: Iterable[TrajectorySummary]) -> Iterator[GradedSession]:
    for one in summaries:
        episode_id = one.episode.episode_id
        is_named = is_recorded_episode(episode_id) and not _NOT_NAMED.fullmatch(episode_id)
        if one.graded and is_named and one.sampled_by.oldest == one.sampled_by.newest:
            yield GradedSession(
                one.episode.trajectory_id,
                one.sampled_by.newest,
                moment_of(one.ledger.requested_at),
                moment_of(one.graded_at),
                play_of(one.success, one.failure.kind),
            )
