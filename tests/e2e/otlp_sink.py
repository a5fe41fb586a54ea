"""A collector that keeps what it receives: OTLP over gRPC, as any backend speaks it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True, slots=True)
class Span:
    """What the tests look at; ids are hex."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    linked_traces: frozenset[str]
    attributes: dict[str, str]


@dataclass(slots=True)
class OtlpSink(trace_service_pb2_grpc.TraceServiceServicer):
    """Serves on a free loopback port; `spans` grows as processes export."""

    spans: list[Span] = field(default_factory=list)
    endpoint: str = ""
    _server: grpc.aio.Server | None = None

    async def Export(
        self,
        request: trace_service_pb2.ExportTraceServiceRequest,
        context: grpc.aio.ServicerContext[object, object],
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """Keep the spans."""
        for resource in request.resource_spans:
            service = _attributes(resource.resource.attributes).get("service.name", "")
            for scope in resource.scope_spans:
                self.spans += [_span(span, service) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 * 1024 * 1024)])
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            await self._server.stop(grace=1.0)

    def named(self, part: str) -> list[Span]:
        """Spans whose name contains `part`."""
        return [span for span in self.spans if part in span.name]


def _attributes(attributes: Iterable[object]) -> dict[str, str]:
    found = {}
    for pair in attributes:
        value = pair.value  # type: ignore[attr-defined]
        found[pair.key] = str(getattr(value, value.WhichOneof("value") or "string_value"))  # type: ignore[attr-defined]
    return found


def _span(span: object, service: str) -> Span:
    links = span.links  # type: ignore[attr-defined]
    return Span(
        name=span.name,  # type: ignore[attr-defined]
        service=service,
        trace_id=span.trace_id.hex(),  # type: ignore[attr-defined]
        span_id=span.span_id.hex(),  # type: ignore[attr-defined]
        parent_id=span.parent_span_id.hex(),  # type: ignore[attr-defined]
        links=tuple(link.span_id.hex() for link in links),
        linked_traces=frozenset(link.trace_id.hex() for link in links),
        attributes=_attributes(span.attributes),  # type: ignore[attr-defined]
    )
