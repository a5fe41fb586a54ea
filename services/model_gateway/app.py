"""Builds the model gateway; the only module that constructs adapters."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import uvloop

from blob_store import S3BlobStore
from event_bus import EventBus
from grpc_edge import Peer
from grpc_edge.key_follower import follow_issuer, follow_keys_of
from model_gateway import telemetry
from model_gateway.adapters.database import GatewayDatabase
from model_gateway.adapters.directory import IDEMPOTENT, RegistryDirectory
from model_gateway.adapters.engine_http import HttpEngines
from model_gateway.adapters.grading import IDEMPOTENT as GRADES
from model_gateway.adapters.grading import RemoteGrading
from model_gateway.adapters.holds import RegistryHolds
from model_gateway.adapters.providers_file import BadProviders, read_providers
from model_gateway.adapters.redaction import RedactionProcess
from model_gateway.adapters.session_bodies import SessionBodies
from model_gateway.adapters.sql_keys import SqlKeyStore
from model_gateway.adapters.sql_sessions import SqlSessions
from model_gateway.adapters.sql_usage import SqlUsage, SqlUsageSink
from model_gateway.adapters.upstream_http import UpstreamHttp
from model_gateway.cli import COMMANDS, run_command
from model_gateway.domain.calls import CallLimits
from model_gateway.domain.limits import KeyLimits
from model_gateway.domain.routing import Promotion
from model_gateway.domain.sessions import SessionBounds
from model_gateway.domain.upstream.providers import Upstreams
from model_gateway.handlers import GatewayDeps, HttpLimits, OpenAiHandlers, directory_router
from model_gateway.public_http import PublicHttp, Routes
from model_gateway.public_tls import public_certificate
from model_gateway.session_handlers import SessionHandlers
from model_gateway.settings import ModelGatewaySettings
from model_gateway.usage_handlers import UsageHandlers
from model_gateway.usecases.access import KeyAccess
from model_gateway.usecases.answering import AnswerCalls
from model_gateway.usecases.canaries import MeetCanaries
from model_gateway.usecases.holding import HoldVersions
from model_gateway.usecases.known_sessions import KnownSessions
from model_gateway.usecases.limiting import LimitKeys
from model_gateway.usecases.models import ListModels
from model_gateway.usecases.pick import PickEngine
from model_gateway.usecases.promotions import Promotions
from model_gateway.usecases.recording import CloseSessions, RecordCalls, RecordingPolicy
from model_gateway.usecases.redacting import RedactCaptures
from model_gateway.usecases.relay import EngineRelay, RelayPolicy
from model_gateway.usecases.rewarding import RewardSessions
from model_gateway.usecases.shadows import ShadowRequests
from model_gateway.usecases.upstream import UpstreamRelay
from model_gateway.usecases.upstream_tries import UpstreamTries
from service_kit.background import Worker
from service_kit.clock import utc_now
from service_kit.component import Closing
from service_kit.http_limits import PortLimits
from service_kit.main import run_main
from service_kit.service import Service
from service_kit.settings import SettingsError
from sql_store import OutboxRelay

NAME = "model_gateway"
_FACTS_GATHER_S = 0.05
"""Facts about sessions are many, and no caller waits for one."""


@dataclass(frozen=True, slots=True)
class _Recording:
    """What keeps the calls of sessions, and ends them."""

    calls: RecordCalls
    closing: CloseSessions
    redaction: RedactCaptures | None
    blobs: S3BlobStore


def build_app(settings: ModelGatewaySettings) -> Service:
    """Wires everything; nothing connects before the service starts."""
    service = Service(NAME, settings)
    database, registry = _database(settings), _registry(settings)
    bus = EventBus(settings.bus, client_name=NAME)
    promotions = Promotions(now=utc_now, on_first_token=_record_promotion)
    directory = RegistryDirectory(registry, poll_s=settings.poll_s, on_promotion=promotions.moved)
    bus.include_router(directory_router(directory))
    recording = _recording_of(service, settings, database, directory)
    engines = HttpEngines(idle_timeout_s=settings.idle_timeout_s, only_https=settings.tls.engines)
    upstream_http = UpstreamHttp()
    pick = _pick(settings, registry, directory)
    relay = _relay(settings, directory, engines, pick)
    deps = GatewayDeps(
        access=_access(service, settings, database),
        answers=_answers(settings, relay, _upstreams(settings), upstream_http),
        limits_of_keys=LimitKeys(SqlUsage(database), _key_limits(settings), now=utc_now),
        models=ListModels(directory, engines, promotions, pick),
        promotions=promotions,
        usage=SqlUsageSink(database),
        calls=recording.calls,
        canaries=MeetCanaries(directory),
        shadows=ShadowRequests(pick, relay, recording.calls, now=utc_now),
        limits=_limits(settings),
        now=utc_now,
    )
    for component in (
        database,
        registry,
        engines,
        upstream_http,
        Closing("s3", recording.blobs.stop),  # not started: answers go on without the object store
        bus,
        OutboxRelay(database, bus, gather_s=_FACTS_GATHER_S),
        Worker("directory", directory.run, ready=directory.ready),
    ):
        service.add(component)
    _add_workers(service, deps, recording)
    service.add(_public(settings, deps, _others(service, settings, database, deps, recording.closing)))
    return service


def _registry(settings: ModelGatewaySettings) -> Peer:
    return Peer(
        "registry",
        settings.peers.registry,
        api_key=settings.access.sent,
        idempotent=(*IDEMPOTENT, *RegistryHolds.IDEMPOTENT),
    )


def _redaction(service: Service, settings: ModelGatewaySettings) -> RedactCaptures | None:
    if settings.capture_redact is None:
        return None
    process = RedactionProcess(settings.capture_redact, deadline_s=settings.capture_redact_s)
    return RedactCaptures(service.add(process))


def _access(service: Service, settings: ModelGatewaySettings, database: GatewayDatabase) -> KeyAccess:
    issued = follow_keys_of(service, settings.access, settings.peers.registry)
    return KeyAccess(SqlKeyStore(database), issued, follow_issuer(service, settings.access))


def _recording_of(
    service: Service, settings: ModelGatewaySettings, database: GatewayDatabase, directory: RegistryDirectory
) -> _Recording:
    blobs, sessions = S3BlobStore(settings.s3), SqlSessions(database, _bounds(settings))
    policy, redaction = _recording_policy(settings), _redaction(service, settings)
    known = KnownSessions(sessions)
    calls = RecordCalls(sessions, known, directory, policy, now=utc_now, redaction=redaction)
    closing = CloseSessions(sessions, known, SessionBodies(blobs), policy, now=utc_now)
    return _Recording(calls, closing, redaction, blobs)


def _add_workers(service: Service, deps: GatewayDeps, recording: _Recording) -> None:
    service.add(Worker("usage", deps.usage.run))
    service.add(Worker("record_calls", recording.calls.run))
    if recording.redaction is not None:
        service.add(Worker("redact_captures", recording.redaction.run))
    service.add(Worker("close_sessions", recording.closing.run))
    service.add(Worker("shadows", deps.shadows.run))


def _others(
    service: Service,
    settings: ModelGatewaySettings,
    database: GatewayDatabase,
    deps: GatewayDeps,
    closing: CloseSessions,
) -> Sequence[Routes]:
    """Routes beside those of models."""
    key = settings.access.sent
    grader = service.add(Peer("grading", settings.peers.grading, api_key=key, idempotent=GRADES))
    return (
        SessionHandlers(deps.access, RewardSessions(closing, RemoteGrading(grader))),
        UsageHandlers(deps.access, SqlUsage(database), deps.limits_of_keys, utc_now),
    )


def _database(settings: ModelGatewaySettings) -> GatewayDatabase:
    bootstrap = settings.bootstrap_key
    return GatewayDatabase(
        settings.sql.url_for(NAME),
        bootstrap_key=bootstrap.get_secret_value() if bootstrap else None,
        bootstrap_key_file=settings.bootstrap_key_file,
        now=utc_now,
    )


def _public(settings: ModelGatewaySettings, deps: GatewayDeps, others: Sequence[Routes]) -> PublicHttp:
    return PublicHttp(
        OpenAiHandlers(deps),
        others,
        (settings.public_host, settings.public_port),
        max_body_bytes=settings.max_body_bytes,
        limits=PortLimits.of(settings.edge),
        drain_s=max(settings.drain_s - 2.0, settings.drain_s / 2),
        certificate=public_certificate(settings),
    )


def _pick(settings: ModelGatewaySettings, registry: Peer, directory: RegistryDirectory) -> PickEngine:
    holding = HoldVersions(RegistryHolds(registry), hold_s=settings.hold_s)
    return PickEngine(directory, holding=holding, suspect_s=settings.engine_suspect_s)


def _relay(
    settings: ModelGatewaySettings, directory: RegistryDirectory, engines: HttpEngines, pick: PickEngine
) -> EngineRelay:
    policy = RelayPolicy(engine_wait_s=settings.engine_wait_s, request_timeout_s=settings.request_timeout_s)
    return EngineRelay(directory, engines, pick, policy)


def _upstreams(settings: ModelGatewaySettings) -> Upstreams:
    """Raises SettingsError for a file that cannot be used."""
    if settings.providers_file is None:
        return Upstreams()
    try:
        return read_providers(settings.providers_file)
    except BadProviders as error:
        raise SettingsError(NAME, [str(error)]) from None


def _answers(
    settings: ModelGatewaySettings, relay: EngineRelay, upstreams: Upstreams, http: UpstreamHttp
) -> AnswerCalls:
    tries = UpstreamTries(http, upstreams.providers, timeout_s=settings.request_timeout_s)
    return AnswerCalls(relay, UpstreamRelay(upstreams, tries), upstreams)


def _key_limits(settings: ModelGatewaySettings) -> KeyLimits:
    return KeyLimits(
        requests_per_minute=settings.key_requests_per_minute,
        tokens_per_minute=settings.key_tokens_per_minute,
        concurrency=settings.key_concurrency,
        cost_per_day=settings.key_cost_per_day,
    )


def _limits(settings: ModelGatewaySettings) -> HttpLimits:
    return HttpLimits(
        call=CallLimits(max_n=settings.max_n, max_tokens=settings.max_tokens),
        timeout_s=settings.request_timeout_s,
    )


def _recording_policy(settings: ModelGatewaySettings) -> RecordingPolicy:
    return RecordingPolicy(
        capture_fraction=settings.capture_fraction,
        idle_s=settings.session_idle_s,
        retention_s=settings.session_retention_days * 86400.0,
    )


def _bounds(settings: ModelGatewaySettings) -> SessionBounds:
    return SessionBounds(max_calls=settings.session_max_calls, max_bytes=settings.session_max_bytes)


def _record_promotion(promotion: Promotion) -> None:
    seconds = promotion.first_token_s or 0.0
    telemetry.PROMOTED_TO_FIRST_TOKEN.labels(promotion.model).observe(seconds)


def main() -> None:
    """`upcycle-model-gateway`, and its commands for keys."""
    if len(sys.argv) > 1 and sys.argv[1] in COMMANDS:
        raise SystemExit(run_command(sys.argv[1:]))
    run_main(NAME, ModelGatewaySettings, build_app, loop_factory=uvloop.new_event_loop)


if __name__ == "__main__":
    main()
