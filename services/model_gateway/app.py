"""Builds the model gateway; the only module that constructs adapters."""

import sys

from blob_store import S3BlobStore
from event_bus import EventBus
from grpc_edge import Peer
from model_gateway import telemetry
from model_gateway.adapters.capture import BlobCapture
from model_gateway.adapters.database import GatewayDatabase
from model_gateway.adapters.directory import IDEMPOTENT, RegistryDirectory
from model_gateway.adapters.engine_http import AiohttpEngines
from model_gateway.adapters.sql_keys import SqlKeyStore
from model_gateway.adapters.sql_usage import SqlUsageSink
from model_gateway.cli import COMMANDS, run_command
from model_gateway.domain.calls import CallLimits
from model_gateway.domain.routing import Promotion
from model_gateway.handlers import GatewayDeps, HttpLimits, OpenAiHandlers, directory_router
from model_gateway.public_http import PublicHttp
from model_gateway.settings import ModelGatewaySettings
from model_gateway.usecases.access import KeyAccess
from model_gateway.usecases.models import ListModels
from model_gateway.usecases.pick import PickEngine
from model_gateway.usecases.promotions import Promotions
from model_gateway.usecases.relay import EngineRelay, RelayPolicy
from service_kit.background import Worker
from service_kit.clock import utc_now
from service_kit.main import run_main
from service_kit.service import Service

NAME = "model_gateway"


def build_app(settings: ModelGatewaySettings) -> Service:
    """Wires everything; nothing connects before the service starts."""
    service = Service(NAME, settings)
    database = _database(settings)
    keys, usage = SqlKeyStore(database), SqlUsageSink(database)
    bus = EventBus(settings.bus, client_name=NAME)
    registry = Peer("registry", settings.peers.registry, idempotent=IDEMPOTENT)
    promotions = Promotions(now=utc_now, on_first_token=_record_promotion)
    directory = RegistryDirectory(registry, poll_s=settings.poll_s, on_promotion=promotions.moved)
    bus.include_router(directory_router(directory))
    engines = AiohttpEngines(idle_timeout_s=settings.idle_timeout_s)
    pick = PickEngine(directory, suspect_s=settings.engine_suspect_s)
    blobs = S3BlobStore(settings.s3)
    capture = BlobCapture(blobs, bus, fraction=settings.capture_fraction)
    deps = GatewayDeps(
        access=KeyAccess(keys),
        relay=_relay(settings, directory, engines, pick),
        models=ListModels(directory, engines, promotions, pick),
        promotions=promotions,
        usage=usage,
        capture=capture,
        limits=_limits(settings),
        now=utc_now,
    )
    service.add(database)
    service.add(registry)
    service.add(engines)
    if settings.capture_fraction > 0:
        service.add(blobs)
    service.add(bus)
    service.add(Worker("directory", directory.run, ready=directory.ready))
    service.add(Worker("usage", usage.run))
    if settings.capture_fraction > 0:
        service.add(Worker("capture", capture.run))
    service.add(_public(settings, deps))
    return service


def _database(settings: ModelGatewaySettings) -> GatewayDatabase:
    bootstrap = settings.bootstrap_key
    return GatewayDatabase(
        settings.sql.url_for(NAME),
        bootstrap_key=bootstrap.get_secret_value() if bootstrap else None,
        bootstrap_key_file=settings.bootstrap_key_file,
        now=utc_now,
    )


def _public(settings: ModelGatewaySettings, deps: GatewayDeps) -> PublicHttp:
    return PublicHttp(
        OpenAiHandlers(deps),
        settings.public_host,
        settings.public_port,
        max_body_bytes=settings.max_body_bytes,
        drain_s=max(settings.drain_s - 2.0, settings.drain_s / 2),
    )


def _relay(
    settings: ModelGatewaySettings, directory: RegistryDirectory, engines: AiohttpEngines, pick: PickEngine
) -> EngineRelay:
    policy = RelayPolicy(engine_wait_s=settings.engine_wait_s, request_timeout_s=settings.request_timeout_s)
    return EngineRelay(directory, engines, pick, policy)


def _limits(settings: ModelGatewaySettings) -> HttpLimits:
    return HttpLimits(
        call=CallLimits(max_n=settings.max_n, max_tokens=settings.max_tokens),
        max_body_bytes=settings.max_body_bytes,
        timeout_s=settings.request_timeout_s,
    )


def _record_promotion(promotion: Promotion) -> None:
    seconds = promotion.first_token_s or 0.0
    telemetry.PROMOTED_TO_FIRST_TOKEN.labels(promotion.model).observe(seconds)


def main() -> None:
    """`upcycle-model-gateway`, and its commands for keys."""
    if len(sys.argv) > 1 and sys.argv[1] in COMMANDS:
        raise SystemExit(run_command(sys.argv[1:]))
    run_main(NAME, ModelGatewaySettings, build_app)


if __name__ == "__main__":
    main()
