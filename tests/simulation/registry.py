"""The registry and its gate in a history: as its own app.py composes them, and what must hold about head."""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from tests.simulation.invariants import Broken, PromiseWatch
from tests.simulation.services import (
    ATTEMPTS,
    NUM_HELD_OUT,
    PLANNER,
    PLANNER_DB,
    REGISTRY,
    Infrastructure,
    forever,
)
from tests.simulation.storage import SimulatedDatabase
from tests.simulation.virtual_time import SimulatedProcess

from checkpoint_registry.adapters.announced_versions import KeptAnnouncements
from checkpoint_registry.adapters.planner import GrpcTasksets
from checkpoint_registry.adapters.sql_canary_releases import SqlCanaryReleases
from checkpoint_registry.adapters.sql_gate import SqlGateStore
from checkpoint_registry.adapters.sql_holds import SqlHoldStore
from checkpoint_registry.adapters.sql_models import SqlLeaseStore, SqlModelStore
from checkpoint_registry.adapters.sql_pairs import SqlPairStore
from checkpoint_registry.adapters.sql_versions import SqlVersionStore
from checkpoint_registry.adapters.sql_watches import SqlWatchStore
from checkpoint_registry.domain.models import Checkpoint, CheckpointState
from checkpoint_registry.handlers import EvidenceReaders, registry_router
from checkpoint_registry.loops import GateLoop, GateLoopDeps, GateWakeups, LostFactsLoop
from checkpoint_registry.servicer import STATUS_OF, RegistryServicer
from checkpoint_registry.usecases.canary_releases import CanaryReleases
from checkpoint_registry.usecases.evidence import GatherEvidence
from checkpoint_registry.usecases.gating import RunGate
from checkpoint_registry.usecases.holds import HoldPolicies
from checkpoint_registry.usecases.leases import EngineLeases
from checkpoint_registry.usecases.lost_facts import TakeLostFacts
from checkpoint_registry.usecases.models import ManageModels
from checkpoint_registry.usecases.pairing import PairPolicy, PlayPairs
from checkpoint_registry.usecases.rollback import RollbackPolicy, WatchHead
from checkpoint_registry.usecases.watch_reports import ReportWatches
from checkpoint_registry.usecases.watch_turns import WatchPolicy, WatchTurns
from checkpoint_registry.usecases.watching import WatchHeads
from grpo_trainer.domain.states import BasePolicy
from policy_files import manifest_from_bytes
from sql_store import OutboxRelay

REGISTRY_DB: Final = "checkpoint_registry"
_MOVES: Final = "SELECT revision, from_checkpoint_id, to_checkpoint_id FROM head_move WHERE revision > 1"
_JOBS: Final = "SELECT checkpoint_id, phase FROM gate_job"
_EVIDENCE: Final = (
    "SELECT checkpoint_id, head_checkpoint_id, head_revision, run_id FROM pair_run WHERE state = 'finished'"
)
_VERDICTS: Final = "SELECT checkpoint_id, gate_json FROM checkpoint WHERE gate_json != ''"
_ENDED: Final = (
    "SELECT run_id, task_position, member % 2, count(DISTINCT member) FROM episode "
    "WHERE state IN ('evaluated', 'failed') GROUP BY 1, 2, 3"
)


async def import_model(
    database: SimulatedDatabase, model: str, base: BasePolicy, objects: Mapping[str, bytes]
) -> None:
    """Add a model of all histories, with its base as head."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    state, digest = CheckpointState.BASE, manifest_from_bytes(objects[base.manifest.key]).digest
    checkpoint = Checkpoint(base.checkpoint_id, model, base.version, "", digest, base.manifest, state, at)
    await SqlModelStore(database).create_model(checkpoint, forked_from="")


async def registry(given: Infrastructure, process: SimulatedProcess) -> None:
    """checkpoint_registry: the gate, and the versions that it may promote."""
    database = given.databases[REGISTRY_DB]
    models, gates, leases = SqlModelStore(database), SqlGateStore(database), SqlLeaseStore(database)
    versions, wakeups, now = SqlVersionStore(database), GateWakeups(), given.now
    tasksets = GrpcTasksets(given.peer(PLANNER))
    pairs, evidence = SqlPairStore(database), GatherEvidence(gates, models, tasksets, now=now)
    play = PlayPairs(pairs, tasksets, PairPolicy(max_tries=3, deadline_s=300.0), now=now)
    gate = RunGate(gates, models, pairs, tasksets, play, now=now)
    head = WatchHead(gates, pairs, models, RollbackPolicy(enabled=False), now=now)
    watches = SqlWatchStore(database)
    off = WatchPolicy(enabled=False)
    watch = WatchHeads(watches, models, tasksets, off, now=now)
    reports = ReportWatches(WatchTurns(watches, models, tasksets, off, now=now), models, watches, off)
    loop = GateLoop(GateLoopDeps(gate, head, watch, gates, watches, wakeups), poll_s=5.0)
    manage = ManageModels(models, cast(Any, None), wakeups.wake, now=now)
    holds = HoldPolicies(SqlHoldStore(database), models, now=now)
    releases = CanaryReleases(SqlCanaryReleases(database), now=now)
    leasing = EngineLeases(leases, now=now)
    servicer = RegistryServicer(manage, models, versions, leasing, holds, releases, reports)
    given.peers.serve(REGISTRY, process, servicer, STATUS_OF)
    bus = given.bus()
    announced = KeptAnnouncements(given.blobs())
    readers = EvidenceReaders(play, watch, evidence)
    bus.include_router(registry_router(gate, readers, versions, announced, wakeups.wake))
    await bus.start()
    await OutboxRelay(database, bus, poll_s=1.0).start()
    forever(loop.run)
    forever(LostFactsLoop(TakeLostFacts(announced, versions, gate, wakeups.wake)).run)


class HeadWatch:
    """Head moves only by a verdict to promote, on evidence that is of this candidate and this head alone:
    every held-out task was played often enough on both sides of the runs that the verdict names."""

    def __init__(self, given: Infrastructure, watch: PromiseWatch) -> None:
        self._databases = given.databases
        self._watch = watch
        self._seen: set[int] = set()

    def on_committed(self) -> None:
        """The registry committed."""
        with self._watch.noted():
            for revision, before, after in self._rows(REGISTRY_DB, _MOVES):
                if revision not in self._seen:
                    self._seen.add(revision)
                    self._check(revision, before, after)

    def undecided(self, run_id: str, ended: str) -> dict[str, str]:
        """Checkpoints of a run about which the gate has not decided, and how far it is. ended: how it did."""
        saved = sorted(one for one, its_run in self._watch.saved.items() if its_run == run_id)
        is_trained = self._watch.was_trained(run_id) and run_id not in self._watch.given_up
        if ended == "completed" and is_trained and not saved:
            return {"its last checkpoint": "not announced"}
        phases = dict(self._rows(REGISTRY_DB, _JOBS))
        found = {one: phases.get(one, "unknown") for one in saved}
        return {one: phase for one, phase in found.items() if phase != "done"}

    def _check(self, revision: int, before: str, after: str) -> None:
        moved = f"moved from {before} to {after}"
        report = json.loads(dict(self._rows(REGISTRY_DB, _VERDICTS)).get(after, "{}"))
        if report.get("verdict") != "promote" or report.get("headCheckpointId") != before:
            raise Broken("HEAD", f"{moved} without a verdict to promote it over that head")
        known = {
            run
            for candidate, head, judged_at, run in self._rows(REGISTRY_DB, _EVIDENCE)
            if (candidate, head, judged_at) == (after, before, revision - 1)
        }
        named = set(report.get("runIds", ()))
        if not named or not named <= known:
            raise Broken("HEAD", f"{moved} on {sorted(named)}, which did not play just these two")
        if not self._is_complete(named):
            raise Broken("HEAD", f"{moved} before every held-out task was played often enough")

    def _is_complete(self, runs: Collection[str]) -> bool:
        """Whether they played each task often enough, together, with both versions."""
        ended: Counter[tuple[int, int]] = Counter()
        for run_id, task, side, count in self._rows(PLANNER_DB, _ENDED):
            ended[task, side] += count if run_id in runs else 0
        return sum(count >= ATTEMPTS for count in ended.values()) >= 2 * NUM_HELD_OUT

    def _rows(self, service: str, statement: str) -> list[Any]:
        return self._databases[service].rows(statement)
