"""How each service is composed in a history: as its own app.py does, over the simulated infrastructure.

Each function here is one life of one process; it returns when the process runs.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from grpc import StatusCode
from tests.simulation import stubs
from tests.simulation.bus import SimulatedBus
from tests.simulation.jetstream import SimulatedJetStream
from tests.simulation.nats_server import SimulatedServer
from tests.simulation.network import SimulatedNetwork
from tests.simulation.rpc import BothServicers, SimulatedPeers
from tests.simulation.storage import SimulatedBlobs, SimulatedDatabase
from tests.simulation.virtual_time import SimulatedProcess, VirtualLoop, running_process

from engine_client import Completion, FinishReason, TokenSpan
from environment_client import EnvironmentClient, EnvironmentTimeouts
from event_bus.topology import EVENTS, ROLLOUT_SAMPLER_EVAL, ROLLOUT_SAMPLER_TRAIN, UPCYCLE
from grpc_edge.status import StatusTable
from grpo_trainer.adapters.bus_facts import BusFacts
from grpo_trainer.adapters.policies import PolicyCache, RegistryPolicies
from grpo_trainer.adapters.trainers_store import TrainersStore
from grpo_trainer.domain.errors import UnknownSession
from grpo_trainer.domain.model_leases import ModelLeases
from grpo_trainer.domain.states import BasePolicy
from grpo_trainer.handlers import FactReader, stored_facts
from grpo_trainer.holding import ModelHolding
from grpo_trainer.runs.deps import RunDeps
from grpo_trainer.runs.lost_ends import LostEnds
from grpo_trainer.runs.sessions import RunSessions
from grpo_trainer.runs.stores import BlobBodies, BlobStates
from grpo_trainer.shown_sessions import ShownSessions
from identities import objects
from planned_runs import PlannedRuns
from policy_files import KeptFacts
from reward_grader.adapters.transcripts import GraderTranscripts
from reward_grader.domain import ExtraGraders
from reward_grader.handlers import trajectory_router
from reward_grader.usecases import GradeTrajectory
from rollout_sampler.adapters.trajectories import StoredTrajectories
from rollout_sampler.handlers import episode_router
from rollout_sampler.usecases.play_episode import PlayEpisode, SamplerDeps
from rollout_sampler.usecases.turns import PlayLimits
from scenario_runner.adapters.bus_outcomes import BusOutcomes
from scenario_runner.adapters.peers import BusGauge, GrpcRegistry, PeerFacts
from scenario_runner.adapters.planned_episodes import SqlPlannedEpisodes
from scenario_runner.adapters.sql_plan import SqlPlan
from scenario_runner.adapters.stored_transcripts import ScenarioTranscripts
from scenario_runner.app import NEVER_OVERTAKEN
from scenario_runner.domain.runs import Prices
from scenario_runner.handlers import READING, plan_router
from scenario_runner.loops import FleetLoop, PlannerLoop, SweepLoop
from scenario_runner.servicer.environments import EnvironmentServicer
from scenario_runner.servicer.statuses import ENVIRONMENT_STATUSES, TASKSET_STATUSES
from scenario_runner.servicer.tasksets import TasksetServicer, TasksetUseCases
from scenario_runner.usecases.catalog import Tasksets
from scenario_runner.usecases.leases import LeaseRules, Leases
from scenario_runner.usecases.planning import PlanRules
from scenario_runner.usecases.submitting import Runs, SubmitRun
from sql_store import OutboxRelay, SoleHolder
from trajectory_store import servicer as ledger_servicer
from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.handlers import ledger_router
from trajectory_store.servicer import TrajectoryServicer, UseCases
from upcycle.api.training.v1.events_pb2 import PolicyPublished
from upcycle.api.training.v1.service_pb2 import GetSessionResponse, ListSessionsResponse

PLANNER, STORE, SAMPLER, GRADER, TRAINER = "planner", "store", "sampler", "grader", "trainer"
REGISTRY: Final = "registry"
ENGINE: Final = "engine"
ENGINES_PER_MODEL: Final = 3
"""For the newest version, and for those that evaluations pin."""
PLANNER_DB: Final = "scenario_runner"
STORE_DB: Final = "trajectory_store"
HELD_OUT: Final = "held"
OTHER_TASKS: Final = "other"
NUM_HELD_OUT: Final = 3
ATTEMPTS: Final = 2
"""Of the gate, at each held-out task."""
_TOKENS: Final = (stubs.TOKEN, stubs.TOKEN)
_LOGPROBS: Final = (-0.5, -0.5)
MODELS: Final = ("m", "n")
EPISODE_DEADLINE_S: Final = 30
LEASE_S: Final = 24.0
"""Three times that of production, because a trainer renews its leases five times as often."""
RULES: Final = PlanRules(
    eval_episodes_in_flight=2,
    groups_per_transaction=3,
    ending_grace_s=20.0,
    stop_grace_s=40.0,
    settle_deadline_s=10.0,
)


@dataclass(frozen=True, slots=True)
class Infrastructure:
    """What outlives every process of a history."""

    loop: VirtualLoop
    rng: random.Random
    network: SimulatedNetwork
    server: SimulatedServer
    peers: SimulatedPeers
    databases: dict[str, SimulatedDatabase]
    objects: dict[str, bytes]
    luck: stubs.Luck
    models: Sequence[str]
    heads: Mapping[str, BasePolicy]
    """Of each model, when the history begins."""
    has_registry: bool
    has_engines: bool
    """Engines with supervisors, whose leases samplers follow; else each version is served once published."""
    engines: dict[str, Any]
    """By address, while they run."""
    new_engines: Callable[["Infrastructure"], Any]
    """How samplers reach them."""
    folder: Path
    on_object: Callable[[str], None]
    """Called with the key of each object that was stored."""
    wake_planner: list[Callable[[], None]]
    """Of each life of a planner, which plans when a run was submitted."""

    def now(self) -> datetime:
        return self.loop.utc_now()

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-{self.rng.getrandbits(48):012x}"

    def latest_version(self, model: str) -> int:
        """The newest version that the trainer of a model published, also where the stream lost that."""
        return max(self._on_stream(model), self._kept_beside_files(model))

    def _on_stream(self, model: str) -> int:
        stream = self.server.streams[EVENTS]
        newest = stream.last_on(UPCYCLE.fact_subject(PolicyPublished, model))
        return (
            int(json.loads(stream.messages[newest].data)["version"]) if newest else self.heads[model].version
        )

    def _kept_beside_files(self, model: str) -> int:
        """The registry takes the fact from there where the stream lost it."""
        kept = (key for key in self.objects if key.endswith(objects.PUBLISHED))
        parsed = (objects.parse_policy_fact(key, objects.PUBLISHED) for key in kept)
        return max((one.version for one in parsed if one is not None and one.model == model), default=0)

    def bus(self) -> SimulatedBus:
        jetstream = SimulatedJetStream(self.server, self.network)
        process = running_process()
        return SimulatedBus(
            jetstream,
            client_name=process.name if process else "",
            topology=UPCYCLE,
            models=self.models,
            holds=self.has_engines,
        )

    def peer(self, address: str) -> Any:
        return SimpleNamespace(address=address, channel=self.peers.channel(address))

    @asynccontextmanager
    async def reached(self, address: str) -> AsyncIterator[Any]:
        """A connection for one call."""
        yield self.peers.channel(address)

    def blobs(self) -> Any:
        return SimulatedBlobs(self.network, self.objects, self.on_object)


Start = Callable[[Infrastructure, SimulatedProcess], Any]


class SimulatedGauge(BusGauge):
    """BusGauge with a simulated connection."""

    def __init__(self, given: Infrastructure) -> None:
        self._jetstream = SimulatedJetStream(given.server, given.network)

    async def _api(self) -> Any:
        return self._jetstream


async def planner(given: Infrastructure, process: SimulatedProcess) -> None:
    """scenario_runner with both roles: plans runs, and hosts environments."""
    database = given.databases[PLANNER_DB]
    plan = SqlPlan(database, now=given.now)
    gauge = SimulatedGauge(given)
    registry, ledger, training = (given.peer(one) for one in ("registry", STORE, TRAINER))
    peer_facts = PeerFacts(registry, ledger, training, gauge)
    loop = PlannerLoop(plan, RULES)
    given.wake_planner.append(loop.wake)
    bus = given.bus()
    sweeps = SweepLoop(plan, gauge, peer_facts, BusOutcomes(bus), RULES, now=given.now)
    name, is_alone = given.new_id(process.service), not database.is_shared
    reading = SoleHolder(database, READING, name, is_alone=is_alone, unable=bus.unable)
    bus.include_router(plan_router(plan, reading, wake=loop.wake))
    episodes = SqlPlannedEpisodes(database, now=given.now)
    host: Any = stubs.StubHost(given.luck)
    leases = Leases(
        host,
        episodes,
        ScenarioTranscripts(given.blobs()),
        LeaseRules(64, 60.0),
        now=given.now,
        new_id=given.new_id,
    )
    own_address = f"{process.service}-{process.replica}"
    environments = EnvironmentServicer(leases, address=lambda: own_address)
    servicer = BothServicers(environments, _tasksets(plan, registry, loop, given))
    for address in (PLANNER, own_address):
        given.peers.serve(address, process, servicer, {**ENVIRONMENT_STATUSES, **TASKSET_STATUSES})
    forever(reading.run)
    await bus.start()
    await OutboxRelay(database, bus, poll_s=1.0, never_overtaken=NEVER_OVERTAKEN).start()
    forever(loop.run)
    forever(sweeps.run)
    forever(FleetLoop(leases, episodes).run)


def _tasksets(plan: SqlPlan, registry: Any, loop: PlannerLoop, given: Infrastructure) -> TasksetServicer:
    """What the registry's gate asks the planner."""
    unused = cast(Any, None)
    submit = SubmitRun(plan, GrpcRegistry(registry), new_id=given.new_id, wake=loop.wake)
    runs = Runs(plan, wake=loop.wake)
    catalog = TasksetUseCases(unused, unused, Tasksets(plan, unused, unused), unused, unused, unused)
    return TasksetServicer(catalog, submit, runs, unused, prices=Prices(0.0, 0.0, 0.0))


async def store(given: Infrastructure, process: SimulatedProcess) -> None:
    """trajectory_store: the ledger."""
    database = given.databases[STORE_DB]
    bus = given.bus()
    index, unused = SqlIndex(database), cast(Any, None)
    bus.include_router(ledger_router(index, on_change=lambda: None, batch_size=100))
    servicer = TrajectoryServicer(UseCases(index, *[unused] * 6), now=given.now)
    given.peers.serve(STORE, process, servicer, ledger_servicer.STATUS_OF)
    await bus.start()
    await OutboxRelay(database, bus, poll_s=1.0).start()


async def sampler(given: Infrastructure, process: SimulatedProcess) -> None:
    """rollout_sampler: its handlers and use case; the turns are a stub's."""
    bus = given.bus()
    environments = EnvironmentClient(PLANNER, EnvironmentTimeouts(open_s=10.0, unreachable_s=3.0))
    policies: Any = StubEngines(given)
    engines = given.new_engines(given) if given.has_engines else policies
    deps = SamplerDeps(environments, engines, policies, StoredTrajectories(given.blobs()))
    limits = PlayLimits(episode_s=EPISODE_DEADLINE_S * 0.8, late_start_s=10.0, retry_s=10.0)
    play = PlayEpisode(deps, limits, now=given.now, new_nonce=lambda: given.new_id("n"))
    for spec in (ROLLOUT_SAMPLER_TRAIN, ROLLOUT_SAMPLER_EVAL):
        router, _ = episode_router(spec, play, bus, now=given.now, slots=3, can_sample=engines.serves)
        bus.include_router(router)
    await bus.start()


class StubEngines:
    """Engines that serve each version as soon as it is published."""

    def __init__(self, given: Infrastructure) -> None:
        self._given = given
        self.luck = given.luck

    async def serves(self, wanted: Any) -> bool:
        return True

    async def version_now(self, wanted: Any) -> int:
        if wanted.pinned_version is not None:
            return int(wanted.pinned_version)
        return self._given.latest_version(wanted.model)

    async def chat_format(self, model: str, version: int) -> int:
        return version

    async def sample(
        self, wanted: Any, prompt_ids: object, sampling: object, usage: object, *, before: str = ""
    ) -> Completion:
        """One turn, by the version that is served now."""
        version = await self.version_now(wanted)
        spans = (TokenSpan(version, 0, 2),)
        digests = {version: "0" * 64}
        return Completion(_TOKENS, _LOGPROBS, FinishReason.STOP, spans, weights_digests=digests)


async def grader(given: Infrastructure, process: SimulatedProcess) -> None:
    """reward_grader."""
    bus = given.bus()
    environments = EnvironmentClient(timeouts=EnvironmentTimeouts(grade_s=10.0))
    extras = ExtraGraders(environment_weight=1.0, graders=(), timeout_s=10.0)
    grade = GradeTrajectory(
        environments, GraderTranscripts(given.blobs()), extras, gone_after_s=15.0, now=given.now
    )
    bus.include_router(trajectory_router(grade, bus, now=given.now, slots=4))
    await bus.start()


class TrainingOverSessions:
    """TrainingServicer without the rpcs that compute: that module imports torch."""

    def __init__(self, shown: ShownSessions) -> None:
        self._shown = shown

    async def GetSession(self, request: Any, context: Any) -> GetSessionResponse:
        return await self._shown.one(request, context)

    async def ListSessions(self, request: object, context: object) -> ListSessionsResponse:
        return self._shown.every()


async def trainer(given: Infrastructure, process: SimulatedProcess) -> None:
    """grpo_trainer: sessions of runs, on a stub learner. A replica that starts again finds its folder, and so
    its name."""
    name = f"{process.service}-{process.replica}"
    bus, blobs, folder = given.bus(), given.blobs(), given.folder / name
    folder.mkdir(exist_ok=True)
    store = TrainersStore(blobs, monotonic=given.loop.time)
    holding = ModelHolding(store, name, lease_s=LEASE_S, monotonic=given.loop.time)
    holding.able = bus.unable
    holding.address = lambda: name
    deps = RunDeps(
        new_learner=lambda: stubs.StubLearner(given.luck),
        bodies=BlobBodies(blobs, train_parse_errors=False),
        states=BlobStates(blobs),
        policies=_policies(given, blobs, folder / "policies", holding),
        held_out=stubs.NothingHeldOut(),
        facts=BusFacts(bus, KeptFacts(blobs), now=given.now, check=holding.surely),
        holding=holding,
        instruments=stubs.StubInstruments(),
        model_of=PlannedRuns(given.peer(PLANNER)).model_of,
        now=given.now,
        work_dir=folder,
    )
    sessions = RunSessions(deps, stored_facts(bus), leases=ModelLeases())
    reader = FactReader(bus, sessions)
    statuses: StatusTable = {UnknownSession: StatusCode.NOT_FOUND}
    servicer = TrainingOverSessions(ShownSessions(sessions, reach=given.reached))
    for address in (TRAINER, name):
        given.peers.serve(address, process, servicer, statuses)
    await bus.start()
    forever(reader.run)
    forever(LostEnds(sessions, PlannedRuns(given.peer(PLANNER))).run)


def _policies(given: Infrastructure, blobs: Any, folder: Path, holding: ModelHolding) -> RegistryPolicies:
    if not given.has_registry:
        return stubs.StubPolicies(blobs, folder, given.heads, holding.surely)
    cache = PolicyCache(blobs, folder, in_use=lambda: ())
    return RegistryPolicies(given.peer(REGISTRY), blobs, cache, check=holding.surely)


def forever(run: Callable[[asyncio.Event], Any]) -> None:
    """A worker of a process; when it ends, so does the process."""
    working = asyncio.ensure_future(run(asyncio.Event()))
    working.add_done_callback(_ended)


def _ended(done: asyncio.Future[Any]) -> None:
    process = running_process()
    if process is not None and not done.cancelled():
        process.died_of = done.exception() or RuntimeError("a worker returned")


STARTS: Final[dict[str, Start]] = {
    PLANNER: planner,
    STORE: store,
    SAMPLER: sampler,
    GRADER: grader,
    TRAINER: trainer,
}
__all__ = ["GRADER", "PLANNER", "SAMPLER", "STARTS", "STORE", "TRAINER", "Infrastructure"]
