"""Other services as the planner sees them: over gRPC, and their durables on the bus."""

import asyncio
import logging
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

from grpc.aio import AioRpcError
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from engine_client import SERVING_STATES, state_from_wire
from episodes import Channel, Purpose
from episodes.identity import CHANNELS
from event_bus.connection import jetstream_of_service, plain_client
from event_bus.topology import (
    REWARD_GRADER,
    ROLLOUT_SAMPLER_EVAL,
    ROLLOUT_SAMPLER_TRAIN,
    SCENARIO_RUNNER_PLAN,
    UPCYCLE,
    ConsumerSpec,
)
from grpc_edge import Peer
from scenario_runner.domain.peer_facts import NOT_STARTED, DurableFact, EngineFact, GraderFact, SessionFact
from scenario_runner.domain.runs import NotFound, Refused
from service_kit.groups import BusSettings
from upcycle.api.registry.v1 import registry_pb2, service_pb2
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub
from upcycle.api.taskset.v1.events_pb2 import EpisodeRequested
from upcycle.api.training.v1 import service_pb2 as training_pb2
from upcycle.api.training.v1 import training_pb2 as training_messages
from upcycle.api.training.v1.service_pb2_grpc import TrainingServiceStub
from upcycle.api.trajectory.v1 import service_pb2 as trajectory_pb2
from upcycle.api.trajectory.v1 import trajectory_pb2 as trajectory_messages
from upcycle.api.trajectory.v1.service_pb2_grpc import TrajectoryServiceStub
from upcycle.errors import Unavailable
from upcycle.gate.words import PASSED_AND_WAITS
from upcycle.moments import moment_of
from upcycle.rpc import RemoteNotFound, RemoteRefused, peer_errors
from upcycle.run_config import PolicyChoice
from upcycle.tasks import plain_name

if TYPE_CHECKING:
    from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceAsyncStub
    from upcycle.api.training.v1.service_pb2_grpc import TrainingServiceAsyncStub
    from upcycle.api.trajectory.v1.service_pb2_grpc import TrajectoryServiceAsyncStub

T = TypeVar("T")
log = logging.getLogger(__name__)

# `why` answers within a second, also when a peer does not.
ASK_TIMEOUT_S: Final = 0.6
_FADES: Final = "process_weight"
"""Metric of runs whose rewards for the process fade."""
_EPISODES_AT_ONCE: Final = 1000
_OVER: Final = (training_messages.SESSION_STATE_FINISHED, training_messages.SESSION_STATE_FAILED)
_NO_COMMAND: Final = datetime.max.replace(tzinfo=UTC)
SAMPLERS: Final[Mapping[Purpose, ConsumerSpec]] = {
    Purpose.TRAIN: ROLLOUT_SAMPLER_TRAIN,
    Purpose.EVAL: ROLLOUT_SAMPLER_EVAL,
}


class GrpcRegistry:
    """Implements ports.Registry."""

    def __init__(self, peer: Peer) -> None:
        self._stub: RegistryServiceAsyncStub = RegistryServiceStub(peer.channel)

    async def check_policy(self, policy: PolicyChoice) -> None:
        """Raises NotFound for an unknown model or version, Refused for a removed one, Unavailable."""
        await self._model(policy.model)
        if policy.pinned_version is not None:
            wanted = service_pb2.GetVersionRequest(model=policy.model, version=policy.pinned_version)
            with _nothing_submitted(f"look up {policy.model}@v{policy.pinned_version}"):
                await self._stub.GetVersion(wanted)

    async def head_version(self, model: str) -> int:
        """The promoted version, from which a training run starts. Raises NotFound, Unavailable."""
        return (await self._model(model)).head_version

    async def _model(self, model: str) -> registry_pb2.Model:
        with _nothing_submitted(f"look up model {model!r}"):
            return (await self._stub.GetModel(service_pb2.GetModelRequest(model=model))).model


class GrpcLineages:
    """Implements ports.Lineages. Asks model by model: for a person's command, not for a loop."""

    def __init__(self, peer: Peer) -> None:
        self._stub: RegistryServiceAsyncStub = RegistryServiceStub(peer.channel)

    async def of_taskset(self, taskset: str, run_ids: Collection[str]) -> list[str]:
        """Raises Unavailable."""
        found: list[str] = []
        with peer_errors("nothing is deleted before the registry says what refers to it", ()):
            models = (await self._stub.ListModels(service_pb2.ListModelsRequest())).models
            for model in models:
                if plain_name(model.gate_taskset) == taskset:
                    found.append(f"the gate of model {model.model}")
                wanted = service_pb2.ListCheckpointsRequest(model=model.model)
                checkpoints = (await self._stub.ListCheckpoints(wanted)).checkpoints
                found += [why for one in checkpoints if (why := _why_kept(one, taskset, run_ids))]
        return found


def _why_kept(checkpoint: registry_pb2.Checkpoint, taskset: str, run_ids: Collection[str]) -> str:
    name = f"checkpoint {checkpoint.checkpoint_id} of {checkpoint.model}"
    if checkpoint.run_id in run_ids or not checkpoint.sources.keys().isdisjoint(run_ids):
        return f"{name} (trained on its runs)"
    return f"{name} (judged by it)" if plain_name(checkpoint.gate.taskset) == taskset else ""


@contextmanager
def _nothing_submitted(what: str) -> Iterator[None]:
    try:
        with peer_errors(what, (RemoteNotFound, RemoteRefused)):
            yield
    except RemoteNotFound as error:
        raise NotFound(error.message or str(error)) from error
    except RemoteRefused as error:
        raise Refused(error.message or str(error)) from error
    except Unavailable as error:
        raise Unavailable(f"{error}; nothing was submitted, try again") from error


class PeerFacts:
    """What other services know about a run; None when a service does not answer in time."""

    def __init__(self, registry: Peer, trajectories: Peer, training: Peer, bus: "BusGauge") -> None:
        self._registry: RegistryServiceAsyncStub = RegistryServiceStub(registry.channel)
        self._trajectories: TrajectoryServiceAsyncStub = TrajectoryServiceStub(trajectories.channel)
        self._training: TrainingServiceAsyncStub = TrainingServiceStub(training.channel)
        self._bus = bus

    async def engines(self, model: str) -> Sequence[EngineFact] | None:
        """Engines of a model that are up. None: the registry did not answer in time."""
        request = service_pb2.ListEnginesRequest(model=model)
        reply = await _answered(self._registry.ListEngines(request, timeout=ASK_TIMEOUT_S))
        return None if reply is None else [_engine(lease) for lease in reply.engines]

    async def ledger(self, run_id: str) -> Mapping[str, int] | None:
        """Episodes by ledger state."""
        request = trajectory_pb2.GetLedgerRequest(run_id=run_id)
        reply = await _answered(self._trajectories.GetLedger(request, timeout=ASK_TIMEOUT_S))
        return None if reply is None else dict(reply.by_state)

    async def reward_alarms(self, run_id: str) -> Sequence[str]:
        """Open alarms of the monitors of reward hacks, one sentence each; none where the store does not
        answer in time, or is of a version without monitors."""
        request = trajectory_pb2.ListAlarmsRequest(run_ids=[run_id], only_open=True)
        try:
            reply = await self._trajectories.ListAlarms(request, timeout=ASK_TIMEOUT_S)
        except AioRpcError as error:
            log.info("reward_alarms_not_read", extra={"run_id": run_id, "error": error.code().name})
            return ()
        return [f"{one.kind}: {one.text} (see {', '.join(one.trajectory_ids[-2:])})" for one in reply.alarms]

    async def waiting_candidates(self, model: str, run_id: str) -> Sequence[str]:
        """Checkpoints of a run that passed their gate and wait until their alarms are known, one sentence
        each; none where the registry does not answer in time."""
        request = service_pb2.ListCheckpointsRequest(model=model)
        reply = await _answered(self._registry.ListCheckpoints(request, timeout=ASK_TIMEOUT_S))
        return [
            f"v{one.version}: {one.reason}"
            for one in (() if reply is None else reply.checkpoints)
            if one.run_id == run_id and PASSED_AND_WAITS in one.reason
        ]

    async def num_confirmed(self, run_id: str, top: int) -> int | None:
        """How many of the run's `top` highest-rewarded trajectories a person confirmed. None: `top` is 0, or
        the store does not answer in time, or has no reviews."""
        if not top:
            return None
        request = trajectory_pb2.ListReviewsRequest(run_id=run_id, top=top)
        try:
            reply = await self._trajectories.ListReviews(request, timeout=ASK_TIMEOUT_S)
        except AioRpcError as error:
            log.info("reviews_not_read", extra={"run_id": run_id, "error": error.code().name})
            return None
        return reply.confirmed

    async def at_grader(self, run_id: str, episode_ids: Sequence[str]) -> GraderFact | None:
        """Those of the episodes whose trajectory is recorded, while the grader's queue holds work; None when
        the ledger or the bus does not answer: nothing is known of them."""
        grader = await self._bus.read(REWARD_GRADER)
        if grader is None:
            return None
        recorded: dict[str, datetime] = {}
        asked = episode_ids if grader.num_pending or grader.num_unacknowledged else ()
        for start in range(0, len(asked), _EPISODES_AT_ONCE):
            request = trajectory_pb2.GetLedgerRequest(
                run_id=run_id, include_unsettled=True, episode_ids=asked[start : start + _EPISODES_AT_ONCE]
            )
            reply = await _answered(self._trajectories.GetLedger(request, timeout=ASK_TIMEOUT_S))
            if reply is None:
                return None
            is_recorded = trajectory_messages.LEDGER_STATE_RECORDED
            entries = (entry for entry in reply.unsettled if entry.state == is_recorded)
            recorded |= {entry.episode_id: moment_of(entry.updated_at) for entry in entries}
        return GraderFact(recorded, is_away=grader.is_abandoned)

    async def session(self, run_id: str) -> SessionFact | None:
        """What the trainer has of a run; NOT_STARTED where it knows none. None: it did not answer in time."""
        request = training_pb2.GetSessionRequest(run_id=run_id)
        try:
            reply = await _answered(self._training.GetSession(request, timeout=ASK_TIMEOUT_S))
        except RemoteNotFound:
            return NOT_STARTED
        if reply is None:
            return None
        session = reply.session
        alarms = tuple(alarm.text for alarm in session.alarms)
        return SessionFact(
            _session_state(session.state),
            session.failure,
            session.waiting_s,
            session.groups_ready,
            alarms,
            session.holder,
            session.step,
            session.version,
            session.failure_kind,
            await self._behind(session),
            session.groups_publishing,
            session.last_metrics.values.get(_FADES, 1.0),
        )

    async def _behind(self, session: training_messages.TrainingSession) -> str:
        """The run that a session which has not begun waits for: the planner lets one run train a model, so
        another open one is older."""
        if session.state != training_messages.SESSION_STATE_WAITING or session.step:
            return ""
        request = training_pb2.ListSessionsRequest()
        reply = await _answered(self._training.ListSessions(request, timeout=ASK_TIMEOUT_S / 2))
        for other in reply.sessions if reply is not None else ():
            is_run = other.kind == training_messages.SESSION_KIND_RUN and other.run_id != session.run_id
            if is_run and other.model == session.model and other.state not in _OVER:
                return str(other.run_id)
        return ""

    async def durables(self, purpose: Purpose, model: str) -> Mapping[str, DurableFact]:
        """Of "sampler" (the queue of the model), "grader", "planner", those that could be read."""
        specs = {
            "sampler": SAMPLERS[purpose].of_model(model),
            "grader": REWARD_GRADER,
            "planner": SCENARIO_RUNNER_PLAN,
        }
        facts = await asyncio.gather(*(self._bus.read(spec) for spec in specs.values()))
        return {name: fact for name, fact in zip(specs, facts, strict=True) if fact is not None}


class BusGauge:
    """How far durables are behind. It has a connection of its own, made when it is first asked."""

    def __init__(self, settings: BusSettings) -> None:
        self._settings = settings
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    async def stop(self) -> None:
        """Disconnect."""
        if self._client is not None:
            await self._client.close()

    async def read(self, spec: ConsumerSpec) -> DurableFact | None:
        """None when the bus does not answer in time."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                info = await (await self._api()).consumer_info(spec.stream, spec.durable)
        except NotFoundError:
            return DurableFact(0, 0, 0, is_missing=True)
        except (NatsError, OSError, TimeoutError) as error:
            log.info("durable_not_read", extra={"durable": spec.durable, "error": repr(error)})
            return None
        return DurableFact(info.num_pending or 0, info.num_ack_pending or 0, info.num_waiting or 0)

    async def none_queued_before(self, purpose: Purpose, model: str) -> datetime | None:
        """A moment: of the commands of this purpose and model that the bus took before it, none waits for a
        sampler, or is with one. None when the bus does not answer in time, or has no such queue."""
        spec = SAMPLERS[purpose].of_model(model)
        fact = await self.read(spec)
        if fact is None or fact.is_missing:
            return None
        if fact.is_idle:
            return _NO_COMMAND
        (subject,) = (UPCYCLE.command_subject(EpisodeRequested, pool, model) for pool in spec.pools)
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                oldest = await (await self._api()).get_msg(spec.stream, seq=1, subject=subject, next=True)
        except NotFoundError:  # it was handled meanwhile
            return None
        except (NatsError, OSError, TimeoutError) as error:
            log.info("queue_not_read", extra={"durable": spec.durable, "error": repr(error)})
            return None
        return oldest.time

    async def _api(self) -> JetStreamContext:
        return jetstream_of_service(await self._connected(), self._settings, ASK_TIMEOUT_S)

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._client is None or self._client.is_closed:
                name = "scenario_runner gauge"
                self._client = await plain_client(self._settings, name, connect_timeout=1)
            return self._client


async def _answered(call: Awaitable[T]) -> T | None:
    """The reply; None when the service does not answer in time. Raises RemoteNotFound."""
    try:
        with peer_errors("ask", (RemoteNotFound,)):
            return await call
    except Unavailable:
        return None


def _session_state(number: int) -> str:
    """A trainer of a newer version may have states that this one does not know."""
    name = training_messages.SessionState.DESCRIPTOR.values_by_number.get(number)
    return "unknown" if name is None else name.name.removeprefix("SESSION_STATE_").lower()


def _engine(lease: registry_pb2.EngineLease) -> EngineFact:
    state = state_from_wire(lease.state)
    return EngineFact(
        engine_id=lease.engine_id,
        channel=CHANNELS.get(lease.channel, Channel.LATEST).value,
        version=lease.version,
        held_versions=tuple(lease.held_versions),
        is_serving=state in SERVING_STATES,
        state=state,
        reason=lease.reason,
    )
