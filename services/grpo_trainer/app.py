"""Builds the trainer; the only module that constructs adapters. Nothing connects before it is started."""

from dataclasses import dataclass, fields
from functools import partial

from blob_store import BlobStore, S3BlobStore
from event_bus import EventBus
from grpc_edge import GrpcServer, Peer
from grpc_edge.key_follower import access_of
from grpo_trainer.adapters.bus_facts import BusFacts
from grpo_trainer.adapters.policies import BranchPolicies, HeldOutTasks, PolicyCache, RegistryPolicies
from grpo_trainer.adapters.task_claims import PlannerClaims
from grpo_trainer.adapters.trainers_store import TrainersStore
from grpo_trainer.domain.alarms import AlarmLimits
from grpo_trainer.domain.errors import InvalidTrainingSpec
from grpo_trainer.domain.model_leases import ModelLeases
from grpo_trainer.handlers import FactReader, stored_facts
from grpo_trainer.holding import ModelHolding, process_name
from grpo_trainer.interactive.conversations import ChatConversations
from grpo_trainer.interactive.deps import InteractiveDeps
from grpo_trainer.interactive.heads import RegistryHeads
from grpo_trainer.interactive.sessions import InteractiveSessions
from grpo_trainer.interactive.states_store import InteractiveStates
from grpo_trainer.interactive.stored_trajectories import PlatformTrajectories
from grpo_trainer.learner.devices import check_device
from grpo_trainer.learner.interactive import TorchInteractiveLearner
from grpo_trainer.learner.packed_model import ModelOptions
from grpo_trainer.learner.torch_learner import LearnerOptions, LearnerThread, TorchLearner
from grpo_trainer.preemption import PreemptionWatch
from grpo_trainer.runs.deps import RunDeps
from grpo_trainer.runs.lost_ends import LostEnds
from grpo_trainer.runs.sessions import RunSessions
from grpo_trainer.runs.stores import BlobBodies, BlobStates
from grpo_trainer.servicer import STATUS_OF, TrainingServicer
from grpo_trainer.settings import GrpoTrainerSettings
from grpo_trainer.step_deadline import StepDeadline
from grpo_trainer.telemetry import TrainerInstruments
from planned_runs import PlannedRuns
from policy_files import KeptFacts
from service_kit.background import Worker
from service_kit.clock import utc_now
from service_kit.component import Closing
from service_kit.main import run_main
from service_kit.service import Service
from service_kit.settings import SettingsError
from signed_objects import signed_store
from upcycle.api.training.v1.service_pb2_grpc import add_TrainingServiceServicer_to_server
from upcycle.rpc import connect

NAME = "grpo_trainer"


def _learner_options(settings: GrpoTrainerSettings) -> LearnerOptions:
    """How this process computes. Raises SettingsError for settings that do not go together, or not with this
    machine."""
    plain = [one.name for one in fields(LearnerOptions) if one.name != "model"]
    model = ModelOptions(
        precision=settings.precision,
        gradient_checkpointing=settings.gradient_checkpointing,
        compiled=settings.compile_layers,
        attention=settings.attention,
    )
    try:
        check_device(settings.device, settings.ranks)
        return LearnerOptions(**{name: getattr(settings, name) for name in plain}, model=model)
    except InvalidTrainingSpec as error:
        raise SettingsError(NAME, [str(error)]) from error


def alarm_limits(settings: GrpoTrainerSettings) -> AlarmLimits:
    """Each limit is a setting of its own, `alarm_<name>`."""
    return AlarmLimits(**{one.name: getattr(settings, f"alarm_{one.name}") for one in fields(AlarmLimits)})


@dataclass(frozen=True, slots=True)
class _Peers:
    registry: Peer
    tasksets: Peer
    trajectories: Peer

    @property
    def planned(self) -> PlannedRuns:
        return PlannedRuns(self.tasksets)


def _peers(service: Service, settings: GrpoTrainerSettings) -> _Peers:
    addresses = settings.peers
    registry = {*RegistryPolicies.IDEMPOTENT, *RegistryHeads.IDEMPOTENT}
    tasksets = {*HeldOutTasks.IDEMPOTENT, *PlannerClaims.IDEMPOTENT, *PlannedRuns.IDEMPOTENT}
    trajectories = PlatformTrajectories.IDEMPOTENT
    return _Peers(
        registry=service.add(
            Peer("registry", addresses.registry, api_key=settings.access.sent, idempotent=registry)
        ),
        tasksets=service.add(
            Peer("tasksets", addresses.tasksets, api_key=settings.access.sent, idempotent=tasksets)
        ),
        trajectories=service.add(
            Peer(
                "trajectories", addresses.trajectories, api_key=settings.access.sent, idempotent=trajectories
            )
        ),
    )


def _run_deps(
    settings: GrpoTrainerSettings,
    thread: LearnerThread,
    blobs: BlobStore,
    bus: EventBus,
    peers: _Peers,
    deadline: StepDeadline,
) -> RunDeps:
    """The dependencies of the sessions of runs."""
    limits = alarm_limits(settings)
    name, _ = process_name(settings.data_dir)
    holding = ModelHolding(
        TrainersStore(blobs), name, lease_s=settings.lease_s, max_models=settings.max_models
    )
    holding.able = lambda: deadline.overdue() or bus.unable()
    cache = PolicyCache(blobs, settings.data_dir / "policies", in_use=thread.bases.values)
    return RunDeps(
        new_learner=lambda: TorchLearner(thread),
        bodies=BlobBodies(blobs, train_parse_errors=settings.train_parse_errors),
        states=BlobStates(blobs),
        policies=RegistryPolicies(peers.registry, blobs, cache, check=holding.surely),
        held_out=HeldOutTasks(peers.tasksets),
        facts=BusFacts(bus, KeptFacts(blobs), now=utc_now, check=holding.surely),
        holding=holding,
        instruments=TrainerInstruments(limits),
        model_of=peers.planned.model_of,
        now=utc_now,
        work_dir=settings.data_dir,
        keep_states=settings.keep_states,
        alarm_limits=limits,
    )


def _interactive_deps(
    settings: GrpoTrainerSettings,
    run_deps: RunDeps,
    leases: ModelLeases,
    thread: LearnerThread,
    blobs: BlobStore,
    peers: _Peers,
) -> InteractiveDeps:
    """The dependencies of interactive training; facts and the work folder are those of the runs."""
    return InteractiveDeps(
        new_learner=lambda: TorchInteractiveLearner(thread),
        trajectories=PlatformTrajectories(peers.trajectories, train_parse_errors=settings.train_parse_errors),
        claims=PlannerClaims(peers.tasksets),
        conversations=ChatConversations(),
        heads=RegistryHeads(peers.registry),
        states=InteractiveStates(blobs),
        policies=BranchPolicies(
            peers.registry, blobs, run_deps.policies.cache, check=run_deps.holding.surely
        ),
        facts=run_deps.facts,
        leases=leases,
        now=utc_now,
        work_dir=settings.data_dir,
        keep_states=settings.keep_states,
        max_open=settings.max_open_models,
        gradients_kept_s=settings.gradients_kept_s,
        holding=run_deps.holding,
    )


def build_app(settings: GrpoTrainerSettings) -> Service:
    """Wires everything. Needs a running event loop."""
    service = Service(NAME, settings)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    blobs = signed_store(service.add(S3BlobStore(settings.s3)), settings.signing, NAME)
    peers = _peers(service, settings)
    deadline = StepDeadline(settings.step_deadline_s, leave_s=settings.lease_s)
    thread = LearnerThread(_learner_options(settings), computing=deadline.computing)
    bus = EventBus(settings.bus, client_name=NAME)
    run_deps = _run_deps(settings, thread, blobs, bus, peers, deadline)
    leases = ModelLeases()
    sessions = RunSessions(run_deps, stored_facts(bus), leave_s=settings.spot_grace_s / 2, leases=leases)
    bus.on_facts_lost = sessions.lost.aged_out
    reader = FactReader(bus, sessions)
    interactive_deps = _interactive_deps(settings, run_deps, leases, thread, blobs, peers)
    interactive = InteractiveSessions(interactive_deps, leave_s=settings.spot_grace_s / 2)
    servicer = TrainingServicer(sessions, interactive, reach=partial(connect, api_key=settings.access.sent))
    service.add(Closing("learner", thread.stop))
    service.add(bus)
    service.add(interactive)
    service.add(Worker("unapplied gradients", interactive.drop_forgotten))
    access = access_of(service, settings.access, settings.peers.registry)
    server = GrpcServer.of(settings, access)
    run_deps.holding.address = lambda: settings.advertised_address or server.address
    service.add(server.add(add_TrainingServiceServicer_to_server, servicer, STATUS_OF))
    service.add(Worker("training", reader.run, ready=reader.ready))
    service.add(Worker("ends of runs", LostEnds(sessions, peers.planned).run))
    service.add(deadline)
    service.add(PreemptionWatch(settings.spot_grace_s, leave=service.request_stop))
    return service


def main() -> None:
    """Entry point of `upcycle-grpo-trainer`."""
    run_main(NAME, GrpoTrainerSettings, build_app)


if __name__ == "__main__":
    main()
