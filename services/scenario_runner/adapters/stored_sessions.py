"""Graded recorded sessions, asked of trajectory_store."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from blob_store.ref import from_wire as blob_from_wire
from episodes.identity import SPLITS, Split
from grpc_edge import Peer
from identities.entities import is_recorded_run, recorded_run_id
from scenario_runner.domain.recorded_sessions import GradedSession
from scenario_runner.domain.runs import Refused
from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.api.trajectory.v1.service_pb2_grpc import TrajectoryServiceStub
from upcycle.api.trajectory.v1.trajectory_pb2 import (
    LEDGER_STATE_EVALUATED,
    STOP_REASON_RECORDING_LIMIT,
    TrajectorySummary,
)
from upcycle.moments import moment_of, timestamp
from upcycle.rpc import peer_errors
from upcycle.session_query import SessionQuery

if TYPE_CHECKING:
    from upcycle.api.trajectory.v1.service_pb2_grpc import TrajectoryServiceAsyncStub

MAX_SESSIONS: Final = 10_000
"""Of one query: more are refused, and a narrower one is asked for."""
_PAGE: Final = 1000


class StoredSessions:
    """Implements ports.RecordedSessions."""

    def __init__(self, peer: Peer, *, now: Callable[[], datetime]) -> None:
        self._now = now
        self._stub: TrajectoryServiceAsyncStub = TrajectoryServiceStub(peer.channel)

    async def graded(self, model: str, query: SessionQuery) -> Sequence[GradedSession]:
        """Raises Refused, Unavailable."""
        request = pb.ListTrajectoriesRequest(filter=_filter(model, query, self._now()), page_size=_PAGE)
        found: list[GradedSession] = []
        with peer_errors(f"nothing was submitted: look up recorded sessions of {model!r}", ()):
            while True:
                reply = await self._stub.ListTrajectories(request)
                recorded = (one for one in reply.trajectories if is_recorded_run(one.episode.run_id))
                found += map(_session, recorded)
                if not reply.next_page_token or len(found) > MAX_SESSIONS:
                    break
                request.page_token = reply.next_page_token
        if len(found) > MAX_SESSIONS:
            raise Refused(
                f"more than {MAX_SESSIONS} graded recorded sessions of {model!r} match: narrow the query by "
                "key=, group=, label=, since= or before="
            )
        return found


def _filter(model: str, query: SessionQuery, now: datetime) -> pb.TrajectoryFilter:
    since, before = query.span(now)
    return pb.TrajectoryFilter(
        model=model,
        run_id=recorded_run_id(query.key) if query.key else "",
        recorded_sessions=True,
        session_group=query.group,
        labels=query.labels,
        state=LEDGER_STATE_EVALUATED,
        graded_since=None if since is None else timestamp(since),
        graded_before=None if before is None else timestamp(before),
    )


def _session(summary: TrajectorySummary) -> GradedSession:
    episode = summary.episode
    return GradedSession(
        episode_id=episode.episode_id,
        run_id=episode.run_id,
        group_id=episode.group_id,
        task_digest=episode.task_digest,
        split=SPLITS.get(episode.split, Split.UNASSIGNED),
        reward=summary.reward,
        success=summary.success,
        oldest_version=summary.sampled_by.oldest,
        newest_version=summary.sampled_by.newest,
        # Tokens that retention removed with the body cannot train.
        num_tokens=0 if summary.HasField("body_removed_at") else summary.num_sampled_tokens,
        body=blob_from_wire(summary.body),
        stop_reason=summary.stop_reason,
        graded_at=moment_of(summary.graded_at),
        why_no_body=summary.quarantine_reason,
        is_cut=summary.stop_reason == STOP_REASON_RECORDING_LIMIT,
    )
