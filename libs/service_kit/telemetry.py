"""Traces by OpenTelemetry, configured only by its standard OTEL_* variables.

No exporter variable set: nothing is recorded, and spans cost next to nothing; the ids of a trace still flow
through gRPC, NATS, HTTP and the logs, marked as not sampled where the trace began in such a process.
"""

import logging
import os
import sys
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import Span, Status, StatusCode

from identities.tenants import OWN_TENANT
from service_kit.unrecorded import Unrecorded

log = logging.getLogger(__name__)

_EXPORTERS: Final = ("otlp", "console", "none")
MIN_LINKS: Final = 4096
"""A training step links to each of its trajectories; the SDK keeps 128 by default, silently."""


class UnknownExporter(ValueError):
    """OTEL_TRACES_EXPORTER or OTEL_EXPORTER_OTLP_PROTOCOL asks for something that is not installed."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The tracer provider of this process."""

    provider: trace.TracerProvider

    def shutdown(self) -> None:
        """Send what is buffered, bounded by the exporter's own deadline, and stop."""
        if isinstance(self.provider, TracerProvider):
            self.provider.shutdown()


def span_limits() -> SpanLimits:
    """The SDK's limits, except links: at least MIN_LINKS, more if OTEL_SPAN_LINK_COUNT_LIMIT is larger."""
    asked = os.environ.get("OTEL_SPAN_LINK_COUNT_LIMIT", "")
    return SpanLimits(max_links=max(MIN_LINKS, int(asked) if asked.isdigit() else 0))


def setup_telemetry(service: str) -> Telemetry:
    """Install the global tracer provider of this process; call once, at start-up."""
    exporter = _exporter()
    provider = Unrecorded() if exporter is None else _recording(service, exporter)
    trace.set_tracer_provider(provider)
    return Telemetry(provider)


def _recording(service: str, exporter: SpanExporter) -> TracerProvider:
    """Samples as OTEL_TRACES_SAMPLER says."""
    names = {"service.name": service, "service.version": version("upcycle"), "upcycle.tenant": OWN_TENANT}
    resource = Resource.create(names)
    provider = TracerProvider(resource=resource, span_limits=span_limits(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _exporter() -> SpanExporter | None:
    """The console, or OTLP when an endpoint is named; None when traces are switched off or go nowhere.

    Raises UnknownExporter.
    """
    env = os.environ
    wanted = env.get("OTEL_TRACES_EXPORTER") or "otlp"
    if wanted not in _EXPORTERS:
        raise UnknownExporter(f"OTEL_TRACES_EXPORTER={wanted!r}: expected one of {', '.join(_EXPORTERS)}")
    if wanted == "none" or env.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if wanted == "console":
        return ConsoleSpanExporter(out=sys.stdout)
    if not (env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_ENDPOINT")):
        return None
    protocol = (
        env.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or env.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )
    return _otlp(protocol)


def _otlp(protocol: str) -> SpanExporter:
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

        return OverHttp()
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        return OverGrpc()
    raise UnknownExporter(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r}: expected http/protobuf or grpc")


def mark_failed(span: Span, kind: str, detail: str) -> None:
    """The operation of this span failed; `kind` is a stable word."""
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, detail))
