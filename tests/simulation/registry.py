"""The registry and its gate in a history: as its own app.py composes them, and what must hold about head."""

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
from checkpoint_registry.adapters.sql_gate import SqlGateStore
from checkpoint_registry.adapters.sql_models import SqlLeaseStore, SqlModelStore
from checkpoint_registry.adapters.sql_versions import SqlVersionStore
from checkpoint_registry.domain.models import Checkpoint, CheckpointState
from checkpoint_registry.handlers import registry_router
from checkpoint_registry.loops import GateLoop, GateLoopDeps, GateWakeups, LostFactsLoop
from checkpoint_registry.servicer import STATUS_OF, RegistryServicer
from checkpoint_registry.usecases.evidence import EvidencePolicy, GatherEvidence
from checkpoint_registry.usecases.gating import GatePolicy, RunGate
from checkpoint_registry.usecases.leases import EngineLeases
from checkpoint_registry.usecases.lost_facts import TakeLostFacts
from checkpoint_registry.usecases.models import ManageModels
from checkpoint_registry.usecases.rollback import RollbackPolicy, WatchHead
from grpo_trainer.domain.states import BasePolicy
from policy_files import manifest_from_bytes
from sql_store import OutboxRelay

REGISTRY_DB: Final = "checkpoint_registry"
_MOVES: Final = "SELECT revision, from_checkpoint_id, to_checkpoint_id FROM head_move WHERE revision > 1"
_JOBS: Final = "SELECT checkpoint_id, phase FROM gate_job"
_EVIDENCE: Final = "SELECT checkpoint_id, run_id FROM evaluation"
_GRADED: Final = "SELECT run_id, task_position, count(*) FROM episode WHERE state = 'evaluated' GROUP BY 1, 2"


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
    policy = EvidencePolicy(max_tries=3, deadline_s=300.0)
    evidence = GatherEvidence(gates, models, tasksets, policy, now=now)
    gate = RunGate(gates, models, tasksets, evidence, GatePolicy(min_family_tasks=1), now=now)
    head = WatchHead(gates, models, RollbackPolicy(enabled=False), now=now)
    loop = GateLoop(GateLoopDeps(gate, head, gates, wakeups), poll_s=5.0)
    manage = ManageModels(models, cast(Any, None), wakeups.wake, now=now)
    servicer = RegistryServicer(manage, models, versions, EngineLeases(leases, now=now))
    given.peers.serve(REGISTRY, process, servicer, STATUS_OF)
    bus = given.bus()
    announced = KeptAnnouncements(given.blobs())
    bus.include_router(registry_router(gate, evidence, versions, announced, wakeups.wake))
    await bus.start()
    await OutboxRelay(database, bus, poll_s=1.0).start()
    forever(loop.run)
    forever(LostFactsLoop(TakeLostFacts(announced, versions, gate, wakeups.wake)).run)


class HeadWatch:
    """Head moves only by evidence: every held-out task was graded often enough, on exactly the candidate and
    on exactly the head before it."""

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
                    self._check(before, after)

    def undecided(self, run_id: str, ended: str) -> dict[str, str]:
        """Checkpoints of a run about which the gate has not decided, and how far it is. ended: how it did."""
        saved = sorted(one for one, its_run in self._watch.saved.items() if its_run == run_id)
        is_trained = self._watch.was_trained(run_id) and run_id not in self._watch.given_up
        if ended == "completed" and is_trained and not saved:
            return {"its last checkpoint": "not announced"}
        phases = dict(self._rows(REGISTRY_DB, _JOBS))
        found = {one: phases.get(one, "unknown") for one in saved}
        return {one: phase for one, phase in found.items() if phase != "done"}

    def _check(self, before: str, after: str) -> None:
        for checkpoint_id in (before, after):
            if not self._is_complete(
                {run for one, run in self._rows(REGISTRY_DB, _EVIDENCE) if one == checkpoint_id}
            ):
                raise Broken("HEAD", f"moved from {before} to {after} without evidence about {checkpoint_id}")

    def _is_complete(self, evaluations: Collection[str]) -> bool:
        """Whether they graded each task often enough, together: what failed in one is asked of another."""
        graded: Counter[int] = Counter()
        for run_id, task, count in self._rows(PLANNER_DB, _GRADED):
            graded[task] += count if run_id in evaluations else 0
        return sum(count >= ATTEMPTS for count in graded.values()) >= NUM_HELD_OUT

    def _rows(self, service: str, statement: str) -> list[Any]:
        return self._databases[service].rows(statement)
