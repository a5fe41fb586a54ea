"""Builds the supervisor; the only module that constructs adapters."""

import time
from dataclasses import fields
from typing import Final

from blob_store import S3BlobStore
from event_bus import EventBus
from grpc_edge import Peer
from identities.objects import PolicyFolder
from planned_runs import PlannedRuns
from policy_engine import wire
from policy_engine.adapters.announcer import PlatformAnnouncer
from policy_engine.adapters.engine_kinds import EmbeddedKind, EngineCertificate, EngineOptions, VllmKind
from policy_engine.adapters.engine_process import AttachedEngine, EngineProcess
from policy_engine.adapters.policy_store import PolicyDownloads
from policy_engine.adapters.versions import IDEMPOTENT, ChannelVersions
from policy_engine.domain import PinRequests
from policy_engine.handlers import supervisor_router
from policy_engine.loops import LeaseLoop, PlannedPins
from policy_engine.ports import EngineHost
from policy_engine.settings import PolicyEngineSettings
from policy_engine.telemetry import SupervisorTelemetry
from policy_engine.usecases.pins import PinDeps, PinnedPolicies
from policy_engine.usecases.reload import ReloadProtocol
from policy_engine.usecases.supervisor import EngineSupervisor, SupervisorDeps, SupervisorTimings
from service_kit.background import Worker
from service_kit.clock import new_id, utc_now
from service_kit.main import run_main
from service_kit.service import Service
from signed_objects import signed_store
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub

NAME = "policy_engine"
_DRAIN_SHARE: Final = 0.4
"""Of the seconds to stop in; the engine's process needs some, too."""


def build_app(settings: PolicyEngineSettings) -> Service:
    """Wires everything; nothing connects before the service starts."""
    service = Service(NAME, settings)
    store = S3BlobStore(settings.s3)
    bus = EventBus(settings.bus, client_name=f"{NAME}-{settings.channel}")
    registry = Peer("registry", settings.peers.registry, api_key=settings.access.sent, idempotent=IDEMPOTENT)
    stub = RegistryServiceStub(registry.channel)
    requests = PinRequests()
    versions = ChannelVersions(settings.model, settings.channel, stub, requests)
    who = wire.EngineIdentity(
        new_id(f"{settings.model}-{settings.channel}"), settings.model, settings.channel, settings.kind
    )
    announcer = PlatformAnnouncer(who, bus, stub, now=utc_now)
    host = build_host(settings)
    signed = signed_store(store, settings.signing, NAME)
    policies = PolicyDownloads(signed, settings.versions_dir, settings.objects_dir)
    protocol = _reload_protocol(host, settings)
    deps = PinDeps(policies, versions, announcer)
    pins = PinnedPolicies(settings.model, requests, deps, protocol, max_held=settings.can_hold)
    telemetry = SupervisorTelemetry(settings.model, settings.channel)
    supervisor_deps = SupervisorDeps(host, policies, versions, announcer, telemetry, time.monotonic)
    timings = SupervisorTimings(
        poll_s=settings.poll_s, prove_s=settings.prove_every_s, drain_s=_DRAIN_SHARE * settings.drain_s
    )
    supervisor = EngineSupervisor(supervisor_deps, protocol, pins, timings)
    leases = _lease_loop(settings, announcer, supervisor, requests)
    supervisor.on_change(leases.changed)
    bus.include_router(supervisor_router(settings, versions, requests, telemetry, supervisor.look_now))
    for component in (store, registry, bus):
        service.add(component)
    service.add(Worker("lease", leases.run, ready=leases.ready))
    service.add(Worker("engine", supervisor.run, ready=supervisor.ready))
    if settings.peers.tasksets:
        _add_planned_pins(service, settings, requests, supervisor)
    return service


def _reload_protocol(host: EngineHost, settings: PolicyEngineSettings) -> ReloadProtocol:
    return ReloadProtocol(
        host,
        settings.model,
        recompute_running=settings.recompute_running,
        clock=time.monotonic,
        dtype=settings.engine_dtype,
    )


def _lease_loop(
    settings: PolicyEngineSettings,
    announcer: PlatformAnnouncer,
    supervisor: EngineSupervisor,
    requests: PinRequests,
) -> LeaseLoop:
    """Renews the lease, and wakes the supervisor where the registry has it hold other policies."""

    def held(policies: list[PolicyFolder]) -> None:
        if requests.hold_only(policies):
            supervisor.look_now()

    renew_s, ttl_s = settings.lease_renew_s, settings.lease_ttl_s
    return LeaseLoop(announcer, supervisor.facts, held, renew_s=renew_s, ttl_s=ttl_s)


def _add_planned_pins(
    service: Service, settings: PolicyEngineSettings, requests: PinRequests, supervisor: EngineSupervisor
) -> None:
    tasksets = Peer(
        "tasksets", settings.peers.tasksets, api_key=settings.access.sent, idempotent=PlannedRuns.IDEMPOTENT
    )
    planned = PlannedRuns(service.add(tasksets))
    pins = PlannedPins(settings.model, requests, planned, supervisor.look_now)
    service.add(Worker("pins of runs", pins.run))


def build_host(settings: PolicyEngineSettings) -> EngineHost:
    """The engine that the settings name."""
    named = [one.name for one in fields(EngineOptions) if one.name != "certificate"]
    options = EngineOptions(**{name: getattr(settings, name) for name in named}, certificate=_shown(settings))
    if settings.kind == "attach":
        kind, url = VllmKind(options), settings.engine_url
        return AttachedEngine(
            kind,
            url,
            start_s=settings.engine_start_s,
            admin_key=settings.engine_key.get_secret_value(),
            hang_s=settings.engine_hang_s,
        )
    return EngineProcess(
        EmbeddedKind(options) if settings.kind == "embedded" else VllmKind(options),
        settings.engine_host,
        settings.engine_port,
        start_s=settings.engine_start_s,
        log_path=settings.log_path,
        variables=settings.engine_variables,
        hang_s=settings.engine_hang_s,
    )


def _shown(settings: PolicyEngineSettings) -> EngineCertificate | None:
    """What the engine shows; None: it speaks http."""
    tls = settings.tls
    if not tls.engines or tls.certificate is None or tls.key is None:
        return None
    return EngineCertificate(tls.certificate, tls.key, tls.ca if tls.clients else None)


def main() -> None:
    """`upcycle-policy-engine`."""
    run_main(NAME, PolicyEngineSettings, build_app)


if __name__ == "__main__":
    main()
