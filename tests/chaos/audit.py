"""After the storm: what was lost, trained twice, or served by other weights than its version says."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from event_bus import EventBus
from upcycle.api.training.v1.events_pb2 import PolicyPublished, StepCompleted
from upcycle.api.trajectory.v1 import service_pb2
from upcycle.platform import Platform

QUIET_S = 2.0
EXPORT_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Audit:
    """Counts over everything that the platform did."""

    requested: int
    settled: int
    in_flight: int
    lost: int
    trained_twice: int
    stale_served: int


async def audit(platform: Platform, bus: EventBus, base_digest: str) -> Audit:
    """Read the ledger, every stored trajectory and every step, and compare them."""
    ledger = await platform.trajectories.GetLedger(service_pb2.GetLedgerRequest(), timeout=30)
    facts = [fact async for fact in _facts(bus, (PolicyPublished, StepCompleted))]
    published = (fact for fact in facts if isinstance(fact, PolicyPublished))
    digests = {0: base_digest} | {fact.version: fact.digest for fact in published}
    records = [record async for record in _records(platform)]
    twice = ledger.trained_twice + trained_twice(fact for fact in facts if isinstance(fact, StepCompleted))
    return Audit(
        requested=ledger.requested,
        settled=ledger.settled,
        in_flight=ledger.in_flight,
        lost=ledger.requested - ledger.settled + sum(not record["body"]["turns"] for record in records),
        trained_twice=twice,
        stale_served=sum(mislabelled_turns(record, digests) for record in records),
    )


def trained_twice(steps: Iterable[StepCompleted]) -> int:
    """Trajectories that two steps claim, of one run or of two; a step that is announced again is the same."""
    owner: dict[str, tuple[str, int]] = {}
    twice = 0
    for step in steps:
        claim = (step.run_id, step.step)
        for trajectory_id in step.trajectory_ids:
            twice += owner.setdefault(trajectory_id, claim) != claim
    return twice


def mislabelled_turns(record: dict[str, Any], digests: dict[int, str]) -> int:
    """Spans of sampled tokens whose weights digest is not the one published under their version."""
    spans = [span for turn in record["body"]["turns"] for span in turn.get("versions", ())]
    return sum(digests.get(int(span.get("version", 0))) != span.get("weights_digest") for span in spans)


async def _facts(bus: EventBus, types: tuple[type[Message], ...]) -> AsyncIterator[Message]:
    """Everything that was said so far: the replay never ends, so quiet means that it has caught up."""
    replay = bus.replay(types, after_sequence=0)
    try:
        while True:
            yield (await asyncio.wait_for(anext(replay), QUIET_S)).message
    except TimeoutError:
        return


async def _records(platform: Platform) -> AsyncIterator[dict[str, Any]]:
    request = service_pb2.ExportTrajectoriesRequest(format=service_pb2.EXPORT_FORMAT_RECORDS)
    async for part in platform.trajectories.ExportTrajectories(request, timeout=EXPORT_TIMEOUT_S):
        for line in part.jsonl.splitlines():
            yield json.loads(line)
