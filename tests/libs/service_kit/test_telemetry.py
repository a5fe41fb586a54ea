"""Telemetry: standard variables choose the exporter, many links survive, names agree with the conventions."""

import ast
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import propagate, trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, messaging_attributes
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.trace import Link, SpanContext, TraceFlags
from tests.support.parsing import parsed

from service_kit.telemetry import UnknownExporter, setup_telemetry, span_limits
from service_kit.unrecorded import Unrecorded

REPOSITORY = Path(__file__).parents[3]
NUM_LINKS = 300
EVENT_NAMES = {"gen_ai.evaluation.result"}
"""Names of events: the packaged conventions list attributes only."""
OUR_NAMES = {
    f"upcycle.{name}"
    for name in (
        "bus.dead_letter", "bus.num_delivered", "channel", "checkpoint.id", "engine.id", "episode.id",
        "group.id", "policy.digest", "policy.from_version", "policy.model", "policy.oldest_version",
        "policy.version", "request.id", "reward", "run.id", "task.slug", "tenant", "training.step",
        "training.trajectories", "trajectory.id", "turn",
    )
}  # fmt: skip
"""An interface: dashboards and other tools read them."""


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A sink that speaks OTLP over HTTP."""
    received: list[ExportTraceServiceRequest] = []

    class Sink(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    server.server_close()


def test_a_step_keeps_more_links_than_the_sdk_would(
    collector: tuple[str, list[ExportTraceServiceRequest]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the real exporter: what arrives at a collector has service name and all links."""
    endpoint, received = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    telemetry = setup_telemetry("grpo-trainer")
    links = [Link(SpanContext(i + 1, i + 1, False, TraceFlags(1))) for i in range(NUM_LINKS)]

    with telemetry.provider.get_tracer("test").start_as_current_span("train_step", links=links):
        pass
    telemetry.shutdown()

    (resource,) = received[0].resource_spans
    names = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    (span,) = resource.scope_spans[0].spans
    assert names["service.name"] == "grpo-trainer"
    assert len(span.links) == NUM_LINKS
    assert span.dropped_links_count == 0


def test_without_an_endpoint_ids_flow_and_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    telemetry = setup_telemetry("toy")

    with telemetry.provider.get_tracer("test").start_as_current_span("x") as span:
        assert span.get_span_context().is_valid
        assert not span.is_recording()
    telemetry.shutdown()


def test_without_an_endpoint_a_trace_that_comes_from_elsewhere_goes_on_as_it_came() -> None:
    """A service without an exporter between two that have one does not cut their trace in two."""
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    sent: dict[str, str] = {}

    tracer = Unrecorded().get_tracer("test")
    with tracer.start_as_current_span("outer", context=propagate.extract(headers)):
        with tracer.start_as_current_span("inner"):
            propagate.inject(sent)
        assert trace.get_current_span().get_span_context().is_valid
    assert sent == headers
    assert not trace.get_current_span().get_span_context().is_valid


def test_the_console_shows_spans_without_a_collector(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    telemetry = setup_telemetry("toy")

    with telemetry.provider.get_tracer("test").start_as_current_span("shown"):
        pass
    telemetry.shutdown()

    assert '"name": "shown"' in capsys.readouterr().out


def test_an_unknown_exporter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "consol")

    with pytest.raises(UnknownExporter, match=r"'consol': expected one of otlp, console, none"):
        setup_telemetry("toy")


def test_an_unknown_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon")

    with pytest.raises(UnknownExporter, match=r"carrier-pigeon.*http/protobuf or grpc"):
        setup_telemetry("toy")


def test_the_link_limit_is_a_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_LINK_COUNT_LIMIT", "128")
    assert span_limits().max_links == 4096
    monkeypatch.setenv("OTEL_SPAN_LINK_COUNT_LIMIT", "9000")
    assert span_limits().max_links == 9000
    assert TracerProvider(span_limits=span_limits()) is not None


def conventional_names() -> set[str]:
    modules = (gen_ai_attributes, messaging_attributes, error_attributes)
    return {value for module in modules for value in vars(module).values() if isinstance(value, str)}


def used_names(*prefixes: str) -> set[str]:
    """Names below these prefixes that the code gives to spans, attributes and events."""
    sources = [path for root in ("libs", "services") for path in (REPOSITORY / root).rglob("*.py")]
    used = {name for path in sources if "api" not in path.parts for name in _attribute_names(path)}
    return {name for name in used if name.startswith(prefixes)}


def test_no_module_makes_up_a_name_under_a_conventional_prefix() -> None:
    assert used_names("gen_ai.", "messaging.", "error.") - conventional_names() == EVENT_NAMES


def test_an_attribute_of_ours_has_one_name() -> None:
    assert used_names("upcycle.") == OUR_NAMES


def _attribute_names(path: Path) -> Iterator[str]:
    """Keys of dictionaries and arguments of calls on a span or a tracer."""
    for node in ast.walk(parsed(path.read_text())):
        named: list[ast.expr | None] = []
        match node:
            case ast.Dict():
                named = list(node.keys)
            case ast.Call(func=ast.Attribute(attr="set_attribute" | "add_event"), args=[first, *_]):
                named = [first]
        for one in named:
            if isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value.count("."):
                yield one.value
