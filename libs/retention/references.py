"""Asks every service that may refer to a run. One that cannot answer stops the sweep: it may need all."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from grpc_edge import Peer
from retention.sweeps import MAX_RUNS, Reference
from upcycle.api.retention.v1.service_pb2 import ListReferencesRequest
from upcycle.api.retention.v1.service_pb2_grpc import ReferenceServiceStub
from upcycle.errors import Unavailable
from upcycle.rpc import peer_errors

MAX_CLOCK_DIFFERENCE: Final = timedelta(hours=1)
"""Between a service that removes and each that it asks. An answer may take a minute."""
IDEMPOTENT: Final = ("ListReferences",)


class GrpcReferences:
    """The services that refer to runs, behind gRPC."""

    def __init__(self, peers: Mapping[str, Peer], *, now: Callable[[], datetime]) -> None:
        """peers: by the name of the service, in the order in which they are asked. Those who release come
        last: they are asked only about runs that no service before them needs."""
        self._now = now
        self._stubs = {name: ReferenceServiceStub(peer.channel) for name, peer in peers.items()}

    async def to_runs(self, runs: Mapping[str, str], *, release: bool) -> Sequence[Reference]:
        """Which of these runs, by id with their models, are needed. release: those that are not will not be
        from now on. Raises Unavailable when one of the services does not answer, a service of an older
        version too, or has another time."""
        left, found = set(runs), list[Reference]()
        for name in self._stubs:
            ordered = sorted(left)
            for start in range(0, len(ordered), MAX_RUNS):
                some = {run_id: runs[run_id] for run_id in ordered[start : start + MAX_RUNS]}
                found += await self._ask(name, some, release=release)
            left -= {one.run_id for one in found if not one.only_trained}
        return found

    async def _ask(self, name: str, runs: Mapping[str, str], *, release: bool) -> list[Reference]:
        models = {run_id: model for run_id, model in runs.items() if model}
        request = ListReferencesRequest(run_ids=list(runs), release=release, models=models)
        with peer_errors(f"nothing is removed before {name} says which runs it needs", ()):
            answer = await self._stubs[name].ListReferences(request)
        if answer.HasField("now"):
            self._compare_clocks(name, answer.now.ToDatetime(UTC))
        return [Reference(one.run_id, one.why, one.only_trained) for one in answer.references]

    def _compare_clocks(self, name: str, theirs: datetime) -> None:
        """By a clock that is ahead everything is old. A service of an older version does not say its time."""
        ours = self._now()
        if abs(ours - theirs) > MAX_CLOCK_DIFFERENCE:
            raise Unavailable(
                f"nothing is removed by age while clocks disagree: it is {ours:%Y-%m-%d %H:%M} UTC here, "
                f"{theirs:%Y-%m-%d %H:%M} UTC at {name}"
            )
