"""A registry's use cases over real SQL, a planner in memory and a clock that the test moves."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select
from tests.services.checkpoint_registry.planner_double import PlannerDouble
from tests.services.checkpoint_registry.running_registry import PlannerStub, Stack

from blob_store import BlobRef
from checkpoint_registry.adapters.sql_gate import SqlGateStore
from checkpoint_registry.adapters.sql_holds import SqlHoldStore
from checkpoint_registry.adapters.sql_models import SqlLeaseStore, SqlModelStore
from checkpoint_registry.adapters.sql_pairs import SqlPairStore
from checkpoint_registry.adapters.sql_versions import SqlVersionStore
from checkpoint_registry.adapters.sql_watches import SqlWatchStore
from checkpoint_registry.domain.models import Checkpoint, CheckpointState
from checkpoint_registry.domain.open_alarms import OpenAlarm, OpenAlarms
from checkpoint_registry.settings import CheckpointRegistrySettings
from checkpoint_registry.usecases.evidence import GatherEvidence
from checkpoint_registry.usecases.gating import RunGate
from checkpoint_registry.usecases.pairing import PairPolicy, PlayPairs
from checkpoint_registry.usecases.rollback import RollbackPolicy, WatchHead
from checkpoint_registry.usecases.watch_reports import ReportWatches
from checkpoint_registry.usecases.watch_turns import WatchPolicy, WatchTurns
from checkpoint_registry.usecases.watching import WatchHeads
from event_bus import EventBus
from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from identities import entities
from service_kit.groups import BusSettings, PeerSettings, S3Settings, SqlSettings
from service_kit.ports import free_ports
from sql_store import Database, MigratedDatabase
from sql_store.outbox import OUTBOX
from upcycle.api.taskset.v1.service_pb2_grpc import add_TasksetServiceServicer_to_server
from upcycle.errors import Unavailable

MODEL = "incident"
START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


@dataclass
class AlarmsDouble:
    """The monitors of reward hacks. raised: sentences by run; confirmed: what people reviewed as solved;
    unseen: what the monitors have not seen yet; is_down: the store does not answer."""

    raised: dict[str, str] = field(default_factory=dict)
    unseen: str = ""
    seen_until: datetime = START
    asked: list[Sequence[str]] = field(default_factory=list)
    confirmed: int = 0
    is_down: bool = False

    async def num_confirmed(self, run_id: str, top: int) -> int:
        assert (run_id, top) == ("run-train", 3)
        if self.is_down:
            raise Unavailable("the trajectory store does not answer")
        return self.confirmed

    async def open_alarms(self, run_ids: Sequence[str], seen_until: datetime) -> OpenAlarms:
        self.asked.append(run_ids)
        self.seen_until = seen_until
        if self.is_down:
            raise Unavailable("the trajectory store does not answer")
        found = [
            OpenAlarm(run_id, *self.raised[run_id].split(": ", 1))
            for run_id in run_ids
            if run_id in self.raised
        ]
        return OpenAlarms(tuple(found), self.unseen)


@dataclass
class Clock:
    """now(), which only the test moves."""

    at: datetime = START

    def __call__(self) -> datetime:
        return self.at

    def forward(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@dataclass
class RegistryHarness:
    """Everything a gate needs, and short words for what tests do to it."""

    database: Database
    clock: Clock
    planner: PlannerDouble = field(default_factory=PlannerDouble)
    rollback: RollbackPolicy = field(default_factory=RollbackPolicy)
    watch_policy: WatchPolicy = field(default_factory=lambda: WatchPolicy(enabled=False))
    alarms: AlarmsDouble = field(default_factory=AlarmsDouble)

    def __post_init__(self) -> None:
        self.models = SqlModelStore(self.database)
        self.gates = SqlGateStore(self.database)
        self.pairs = SqlPairStore(self.database)
        self.watches = SqlWatchStore(self.database)
        self.leases = SqlLeaseStore(self.database)
        self.holds = SqlHoldStore(self.database)
        self.versions = SqlVersionStore(self.database)
        self.restart()

    def restart(self) -> None:
        """New use cases over the same tables, as after a crash."""
        self.play = PlayPairs(self.pairs, self.planner, PairPolicy(first_retry_s=1.0), now=self.clock)
        self.evidence = GatherEvidence(self.gates, self.models, self.planner, now=self.clock)
        self.gate = RunGate(
            self.gates, self.models, self.pairs, self.planner, self.play, now=self.clock, alarms=self.alarms
        )
        self.watching = WatchHeads(
            self.watches, self.models, self.planner, self.watch_policy, now=self.clock, alarms=self.alarms
        )
        turns = WatchTurns(self.watches, self.models, self.planner, self.watch_policy, now=self.clock)
        self.reports = ReportWatches(turns, self.models, self.watches, self.watch_policy)
        self.watch = WatchHead(self.gates, self.pairs, self.models, self.rollback, now=self.clock)

    async def save(self, version: int, run_id: str = "run-train", *, digest: str = "") -> Checkpoint:
        saved = checkpoint(version, run_id, digest=digest)
        await self.gate.record(saved, "")
        return saved

    async def drive(self) -> None:
        """Until there is nothing to do without the planner."""
        await self.watch.consider(MODEL)
        for _ in range(50):
            if not await self.gate.advance(MODEL):
                await self.watching.consider(MODEL)
                return
        raise AssertionError("the gate never rests")

    async def finish(self, version: int, rate: float, head_rate: float, *, lost: int = 0) -> None:
        """The newest run of a candidate and head ends, as run.finished reports it. rate, head_rate: of
        attempts that succeed."""
        self.clock.forward(1)
        run_id = self.planner.order_of(version)
        self.planner.finish_pair(run_id, rate, head_rate, self.clock(), lost=lost)
        await self.report(run_id)

    async def decide(self, version: int, rate: float, head_rate: float) -> None:
        """All looks at a candidate, until it is decided."""
        for _ in range(8):
            if await self.state(version) is not CheckpointState.EVALUATING:
                return
            await self.finish(version, rate, head_rate)
        raise AssertionError(f"v{version} is still evaluated after 8 runs")

    async def report(self, run_id: str) -> None:
        if not await self.play.collect(run_id):
            await self.evidence.collect(run_id)
        await self.drive()

    async def state(self, version: int) -> CheckpointState:
        return (await self.models.version(MODEL, version)).state

    async def reason(self, version: int) -> str:
        return (await self.models.version(MODEL, version)).reason

    async def head(self) -> int:
        return (await self.models.model(MODEL)).head_version

    async def events(self) -> list[str]:
        """Ids of the events in the outbox, in order."""
        query = select(OUTBOX.c.event_id).order_by(OUTBOX.c.id)
        return await self.database.run(lambda connection: list(connection.execute(query).scalars()))


def checkpoint(version: int, run_id: str = "run-train", *, digest: str = "") -> Checkpoint:
    return Checkpoint(
        checkpoint_id=entities.checkpoint_id(MODEL, version),
        model=MODEL,
        version=version,
        parent_checkpoint_id=entities.checkpoint_id(MODEL, version - 1) if version else "",
        digest=digest or f"{version:064x}",
        manifest=BlobRef(f"default/policies/{MODEL}/v{version:08d}/manifest.json", "a" * 64, 100),
        state=CheckpointState.CANDIDATE if version else CheckpointState.BASE,
        created_at=START,
        run_id=run_id if version else "",
        step=version,
    )


async def judge(
    harness: RegistryHarness, version: int, rate: float, *, head_rate: float, run_id: str = "run-train"
) -> None:
    """A candidate is saved and judged."""
    await harness.save(version, run_id)
    await harness.drive()
    await harness.decide(version, rate, head_rate)


@pytest.fixture
async def harness(sql_url: str) -> AsyncIterator[RegistryHarness]:
    """A registry that holds model `incident` at version 0 and a training run with a gate."""
    database = MigratedDatabase(sql_url, "checkpoint_registry")
    await database.start()
    harness = RegistryHarness(database, Clock())
    await harness.models.create_model(checkpoint(0), forked_from="")
    harness.planner.training_run("run-train", MODEL)
    try:
        yield harness
    finally:
        await database.stop()


@asynccontextmanager
async def stack_on(
    nats_url: str,
    s3_settings: S3Settings,
    folder: Path,
    rates: dict[int, float],
    planner_of: Callable[[dict[int, float]], PlannerStub] = PlannerStub,
) -> AsyncIterator[Stack]:
    """A registry on this bus, beside a planner. rates: of success, by version."""
    # The other rpcs answer UNIMPLEMENTED, which the registry never sees.
    planner = planner_of(rates)
    server = GrpcServer("127.0.0.1", 0, OPEN).add(add_TasksetServiceServicer_to_server, planner)
    await server.start()
    bus = EventBus(BusSettings(url=nats_url), client_name="test")
    await bus.start()
    planner.bus = bus
    settings = CheckpointRegistrySettings(
        grpc_port=free_ports(1)[0],
        gate_poll_s=0.2,
        watch_pairs=0,
        max_import_bytes=4096,
        bus=BusSettings(url=nats_url),
        s3=s3_settings,
        sql=SqlSettings(data_dir=folder / "sql"),
        peers=PeerSettings(tasksets=server.address, trajectories=server.address),
    )
    try:
        yield Stack(settings, bus, planner)
    finally:
        await bus.stop()
        await server.stop()


@pytest.fixture
async def stack(nats_url: str, s3_settings: S3Settings, tmp_path: Path) -> AsyncIterator[Stack]:
    """On the bus of the session."""
    async with stack_on(nats_url, s3_settings, tmp_path, {0: 0.3, 1: 0.9, 2: 0.3}) as made:
        yield made
