"""Engines in a history: real supervisors, leases and choices among them. What an engine computes is a stub.

An engine holds the digest of the weights file that it loaded. Each token that it samples is looked at: the
version by which it names its weights must be the version whose file it is.
"""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal

from tests.simulation import stubs
from tests.simulation.invariants import Broken
from tests.simulation.services import ENGINE, ENGINES_PER_MODEL, PLANNER, REGISTRY, Infrastructure, forever
from tests.simulation.virtual_time import SimulatedProcess

from engine_client import (
    Completion,
    EngineUnavailable,
    FinishReason,
    SamplingParams,
    StagedScores,
    TokenSpan,
    parse_label,
)
from episodes import Channel
from identities import objects
from planned_runs import PlannedRuns
from policy_engine import wire
from policy_engine.adapters.announcer import PlatformAnnouncer
from policy_engine.adapters.policy_store import PolicyDownloads
from policy_engine.adapters.versions import ChannelVersions
from policy_engine.domain import PinRequests, Policy
from policy_engine.handlers import supervisor_router
from policy_engine.loops import LeaseLoop, PlannedPins
from policy_engine.telemetry import SupervisorTelemetry
from policy_engine.usecases.pins import PinDeps, PinnedPolicies
from policy_engine.usecases.reload import ReloadProtocol
from policy_engine.usecases.supervisor import EngineSupervisor, SupervisorDeps, SupervisorTimings
from policy_files import manifest_from_bytes
from rollout_sampler.adapters.engines import LeasedEngines
from rollout_sampler.adapters.leases import EngineChoice, LeaseCache
from rollout_sampler.domain import PolicyWanted
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub

WEIGHTS: Final = "model.safetensors"
_CHANNELS: Final = (Channel.LATEST, Channel.CANDIDATE, Channel.HEAD)
_CALL_S: Final = 0.05
_TIMINGS: Final = SupervisorTimings(poll_s=6.0, retry_s=2.0)
_RENEW_S: Final = 8.0
_TTL_S: Final = 30.0
_LEASE_AGE_S: Final = 3.0
_ANSWER_S: Final = 10.0


class SimulatedEngine:
    """One engine process: EngineControl for its supervisor, an address for samplers. Every other one has
    room for weights beside those that serve, as the embedded engine has; the others are as vLLM."""

    def __init__(self, given: Infrastructure, model: str, process: SimulatedProcess) -> None:
        self.model = model
        self.process = process
        self.label = "default"
        self._given = given
        self._weights = b""
        self._staged: bytes | None = None
        self._has_room = given.rng.random() < 0.5
        self._paused = False

    async def _called(self) -> None:
        """Raises EngineUnavailable, sometimes."""
        await asyncio.sleep(self._given.loop.pause_s(_CALL_S))
        luck = self._given.luck
        luck.maybe_break(luck.engines_fail, EngineUnavailable, "the engine did not answer")

    async def pause(self, mode: Literal["keep", "wait", "abort"] = "keep") -> None:
        await self._called()
        self._paused = True

    async def resume(self) -> None:
        await self._called()
        self._paused = False

    async def is_paused(self) -> bool:
        await self._called()
        return self._paused

    async def reload_weights(self, directory: Path) -> None:
        """It may fail before or after it loaded them."""
        await self._called()
        self.load(directory)
        await self._called()

    def load(self, directory: Path) -> None:
        """Its weights are those of the folder from now on."""
        self._weights = (directory / WEIGHTS).read_bytes()

    async def stage_weights(self, directory: Path, rows: Sequence[Sequence[int]]) -> StagedScores | None:
        await self._called()
        if not self._has_room:
            return None
        self._staged = (directory / WEIGHTS).read_bytes()
        return StagedScores(
            *([stubs.scores(one, row) for row in rows] for one in (self._staged, self._weights))
        )

    async def swap_weights(self, directory: Path, label: str, *, recompute_running: bool) -> float:
        """It may fail before or after it swapped them."""
        await self._called()
        assert self._staged is not None
        self._weights, self.label, self._staged = self._staged, label, None
        await self._called()
        return 0.0

    async def forget_staged_weights(self) -> None:
        await self._called()
        self._staged = None

    async def update_weight_version(self, label: str) -> None:
        await self._called()
        self.label = label

    async def reset_prefix_cache(self, *, recompute_running: bool = False) -> None:
        await self._called()

    async def score_while_paused(
        self, rows: Sequence[Sequence[int]], *, model: str | None = None
    ) -> list[list[float]] | None:
        await self._called()
        return [stubs.scores(self._weights, row) for row in rows]

    async def generate(self) -> Completion:
        """One turn, in one piece, while it is not paused."""
        await self._called()
        while self._paused:
            await asyncio.sleep(0.2)
        known = parse_label(self.label)
        if known is None or not known.is_proven:
            raise EngineUnavailable(f"the engine serves {self.label!r}")
        self._check(known.version)
        spans = (TokenSpan(known.version, 0, 2),)
        return Completion((stubs.TOKEN, stubs.TOKEN), (-0.5, -0.5), FinishReason.STOP, spans)

    def _check(self, version: int) -> None:
        """Raises Broken where its weights are not those of the version that it names."""
        if hashlib.sha256(self._weights).hexdigest() != file_digest(self._given, self.model, version):
            self._given.loop.failure = Broken("STALE", f"{self.process.name} samples v{version} by others")


class SimulatedHost:
    """EngineHost: the engine lives and dies with its supervisor's process."""

    def __init__(self, given: Infrastructure, model: str, process: SimulatedProcess) -> None:
        self._given = given
        self._model = model
        self._process = process
        self.base_url = ""

    async def start(self, policy: Policy) -> SimulatedEngine:
        engine = SimulatedEngine(self._given, self._model, self._process)
        await asyncio.sleep(self._given.loop.pause_s(2.0))
        engine.load(policy.directory)
        self.base_url = f"http://{self._given.new_id(self._process.name)}"
        self._given.engines[self.base_url] = engine
        return engine

    async def drain(self, limit_s: float) -> None:
        """Requests of the simulation end in no time."""

    async def stop(self) -> None:
        self._given.engines.pop(self.base_url, None)
        self.base_url = ""

    def failure(self) -> str | None:
        return None

    async def died(self) -> None:
        await asyncio.Event().wait()

    def prepare(self, policy: Policy) -> Path:
        return policy.directory

    def prepare_held(self, policy: Policy, serving: Policy) -> Path:
        return policy.directory

    keeps_weights = False


async def engine(given: Infrastructure, process: SimulatedProcess) -> None:
    """policy_engine: the supervisor of one model and channel."""
    model = given.models[process.replica // ENGINES_PER_MODEL]
    channel = _CHANNELS[process.replica % ENGINES_PER_MODEL]
    bus, stub = given.bus(), RegistryServiceStub(given.peer(REGISTRY).channel)
    requests = PinRequests()
    versions = ChannelVersions(model, channel, stub, requests)
    name = f"{ENGINE}-{process.replica}"
    who = wire.EngineIdentity(given.new_id(name), model, channel, "embedded")
    announcer = PlatformAnnouncer(who, bus, stub, now=given.now)
    host: Any = SimulatedHost(given, model, process)
    folder = given.folder / name
    folder.mkdir(exist_ok=True)
    policies = PolicyDownloads(given.blobs(), folder)
    protocol = ReloadProtocol(host, model, recompute_running=False, clock=time.monotonic)
    pins = PinnedPolicies(model, requests, PinDeps(policies, versions, announcer), protocol, max_held=0)
    telemetry = SupervisorTelemetry(model, channel)
    deps = SupervisorDeps(host, policies, versions, announcer, telemetry, time.monotonic)
    supervisor = EngineSupervisor(deps, protocol, pins, _TIMINGS)
    leases = LeaseLoop(announcer, supervisor.facts, requests.hold_only, renew_s=_RENEW_S, ttl_s=_TTL_S)
    supervisor.on_change(leases.changed)
    settings: Any = SimpleNamespace(model=model, channel=channel)
    bus.include_router(supervisor_router(settings, versions, requests, telemetry, supervisor.look_now))
    await bus.start()
    forever(leases.run)
    forever(supervisor.run)
    planned = PlannedRuns(given.peer(PLANNER))
    forever(PlannedPins(model, requests, planned, supervisor.look_now).run)


class SimulatedLeasedEngines(LeasedEngines):
    """LeasedEngines over simulated connections."""

    def __init__(self, given: Infrastructure) -> None:
        async def digest_of(model: str, version: int) -> str:
            return manifest_digest(given, model, version)

        leases = LeaseCache(RegistryServiceStub(given.peer(REGISTRY).channel), max_age_s=_LEASE_AGE_S)
        super().__init__(leases, digest_of, turn_timeout_s=_ANSWER_S)
        self.luck = given.luck
        self._given = given

    async def serves(self, wanted: PolicyWanted) -> bool:
        """See LeaseCache."""
        return await self._leases.serves(wanted)

    async def _generate(
        self, choice: EngineChoice, prompt_ids: Sequence[int], sampling: SamplingParams
    ) -> Completion:
        engine = self._given.engines.get(choice.base_url)
        if engine is None or engine.process.is_dead:
            raise EngineUnavailable("no engine answers there")
        return await self._given.network.conversation(
            engine.process.service,
            engine.generate(),
            timeout_s=_ANSWER_S,
            lost=lambda: EngineUnavailable("no answer"),
        )


def manifest_digest(given: Infrastructure, model: str, version: int) -> str:
    """As the registry says it."""
    return str(manifest_from_bytes(given.objects[objects.policy_manifest(model, version)]).digest)


def file_digest(given: Infrastructure, model: str, version: int) -> str:
    """Of the weights that were published as a version."""
    manifest = manifest_from_bytes(given.objects[objects.policy_manifest(model, version)])
    return next(str(one.blob.sha256) for one in manifest.files if one.name == WEIGHTS)


def behind(given: Infrastructure) -> str | None:
    """A model of which no engine serves the newest published version, though all is well; None: there is
    none."""
    for model in given.models:
        newest = given.latest_version(model)
        serving = sorted(one.label for one in given.engines.values() if one.model == model)
        if str(newest) not in serving:
            return f"v{newest} of {model} is published, and its engines serve {serving}"
    return None
