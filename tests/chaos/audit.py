"""After the storm: what was lost, trained twice, or served by other weights than its version says."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message

from event_bus import EventBus
from service_kit.groups import BusSettings
from upcycle.api.common.v1.common_pb2 import PURPOSE_TRAIN
from upcycle.api.registry.v1.service_pb2 import GetModelRequest
from upcycle.api.taskset.v1.service_pb2 import ListRunsRequest
from upcycle.api.taskset.v1.taskset_pb2 import Run
from upcycle.api.training.v1.events_pb2 import PolicyPublished, StepCompleted
from upcycle.api.trajectory.v1 import service_pb2
from upcycle.api.trajectory.v1.service_pb2 import GetLedgerResponse
from upcycle.platform import Platform
from upcycle.run_client import is_over, state_word

QUIET_S: Final = 2.0
CALL_S: Final = 30.0
EXPORT_TIMEOUT_S: Final = 120.0
SETTLE_LIMIT_S: Final = 120.0
"""Without another settled episode: what is in flight then counts as lost."""
AGAIN_S: Final = 5.0
MAX_RUNS: Final = 1000
"""So many a planner lists."""
BROKEN: Final = (
    "lost",
    "conflicts",
    "disagreements",
    "trained_twice",
    "stale_served",
    "in_flight",
    "open_runs",
)
"""Of an Audit: what must be empty or 0."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the services say once nothing happens any more. ledger: over all runs."""

    ledger: GetLedgerResponse
    ledgers: Mapping[str, GetLedgerResponse]
    """By run."""
    runs: Sequence[Run]
    """All that the planner has, those of gates too."""
    records: Sequence[dict[str, Any]]
    steps: Sequence[StepCompleted]
    digests: Mapping[int, str]
    """Of the published weights, by version."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Counts over everything that the platform did."""

    requested: int
    settled: int
    in_flight: int
    lost: int
    """Not settled, without a turn, or counted by the planner and unknown to the ledger."""
    conflicts: int
    disagreements: list[str]
    """Between the planner's counts and the ledger's, a sentence for each run."""
    open_runs: list[str]
    gate_runs: dict[str, int]
    """Evaluations by how they ended. One that failed is ordered again by its gate."""
    trained_twice: int
    stale_served: int

    @property
    def broken(self) -> dict[str, Any]:
        """The promises that do not hold."""
        return {what: getattr(self, what) for what in BROKEN if getattr(self, what)}


async def audit_at_the_end(
    platform: Platform, settings: BusSettings, model: str, say: Callable[[str], None]
) -> Audit:
    """Audit until all is settled and counted, or no episode was settled for SETTLE_LIMIT_S."""
    base = await platform.registry.GetModel(GetModelRequest(model=model), timeout=CALL_S)
    bus = EventBus(settings, client_name="audit")
    await bus.start()
    try:
        settled, until = -1, 0.0
        while True:
            result = judge(await _evidence(platform, bus, base.base.digest))
            if result.settled > settled:
                settled, until = result.settled, time.monotonic() + SETTLE_LIMIT_S
            unfinished = (result.in_flight, result.disagreements, result.open_runs)
            if not any(unfinished) or time.monotonic() > until:
                return result
            say(f"{result.in_flight} of {result.requested} episodes are in flight; {_rest(result)}")
            await asyncio.sleep(AGAIN_S)
    finally:
        await bus.stop()


def judge(found: Evidence) -> Audit:
    """Compare the ledger with the planner, every stored trajectory and every step."""
    ledger = found.ledger
    empty = sum(not record["body"]["turns"] for record in found.records)
    unknown = sum(max(0, run.counts.requested - _of(found, run).requested) for run in found.runs)
    evaluations = [run for run in found.runs if run.spec.purpose != PURPOSE_TRAIN]
    return Audit(
        requested=ledger.requested,
        settled=ledger.settled,
        in_flight=ledger.in_flight,
        lost=ledger.requested - ledger.settled + empty + unknown,
        conflicts=ledger.conflicts,
        disagreements=list(disagreements(found)),
        open_runs=[f"{run.run_id} is {state_word(run)}" for run in found.runs if not is_over(run)],
        gate_runs=dict(Counter(map(state_word, evaluations))),
        trained_twice=ledger.trained_twice + trained_twice(found.steps),
        stale_served=sum(mislabelled_turns(record, found.digests) for record in found.records),
    )


def disagreements(found: Evidence) -> Iterable[str]:
    """Where planner and ledger count differently.

    Of the states only `trained` is compared: an episode that ends while a person cancels its run may be
    cancelled for the planner and have its own end in the ledger, which keeps what came first.
    """
    for run in found.runs:
        counts, ledger = run.counts, _of(found, run)
        pairs = {
            "requested": (counts.requested, ledger.requested),
            "settled": (counts.settled, ledger.settled),
            "in flight": (counts.in_flight, ledger.in_flight),
        }
        if run.spec.purpose == PURPOSE_TRAIN:  # one of an evaluation may be trained by another run, later
            pairs["trained"] = (counts.by_state.get("trained", 0), ledger.by_state.get("trained", 0))
        for what, (planned, counted) in pairs.items():
            if planned != counted:
                yield f"{run.run_id}: {planned} {what} for the planner, {counted} in the ledger"
    of_runs = sum(_of(found, run).requested for run in found.runs)
    if of_runs != found.ledger.requested:
        yield f"the ledger has {found.ledger.requested} episodes, {of_runs} of them of runs that are listed"


def trained_twice(steps: Iterable[StepCompleted]) -> int:
    """Trajectories that two steps claim, of one run or of two; a step that is announced again is the same."""
    owner: dict[str, tuple[str, int]] = {}
    twice = 0
    for step in steps:
        claim = (step.run_id, step.step)
        for trajectory_id in step.trajectory_ids:
            twice += owner.setdefault(trajectory_id, claim) != claim
    return twice


def mislabelled_turns(record: dict[str, Any], digests: Mapping[int, str]) -> int:
    """Spans of sampled tokens whose weights digest is not the one published under their version."""
    spans = [span for turn in record["body"]["turns"] for span in turn.get("versions", ())]
    return sum(digests.get(int(span.get("version", 0))) != span.get("weights_digest") for span in spans)


def _of(found: Evidence, run: Run) -> GetLedgerResponse:
    return found.ledgers.get(run.run_id, GetLedgerResponse())


def _rest(result: Audit) -> str:
    return "; ".join([*result.open_runs, *result.disagreements]) or "all counts agree"


async def _evidence(platform: Platform, bus: EventBus, base_digest: str) -> Evidence:
    listed = await platform.tasksets.ListRuns(ListRunsRequest(limit=MAX_RUNS), timeout=CALL_S)
    ledgers = {run.run_id: await _ledger(platform, run.run_id) for run in listed.runs}
    ledger = await _ledger(platform)
    facts = [fact async for fact in _facts(bus, (PolicyPublished, StepCompleted))]
    published = (fact for fact in facts if isinstance(fact, PolicyPublished))
    return Evidence(
        ledger=ledger,
        ledgers=ledgers,
        runs=listed.runs,
        records=[record async for record in _records(platform)],
        steps=[fact for fact in facts if isinstance(fact, StepCompleted)],
        digests={0: base_digest} | {fact.version: fact.digest for fact in published},
    )


async def _ledger(platform: Platform, run_id: str = "") -> GetLedgerResponse:
    return await platform.trajectories.GetLedger(service_pb2.GetLedgerRequest(run_id=run_id), timeout=CALL_S)


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
