"""A reload belongs to the trace of the fact that announced the version."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.services.policy_engine.doubles import target

from policy_engine import telemetry
from policy_engine.domain import FailureKind, VersionRefused


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Spans of this test, kept apart from whatever provider the session has."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_TRACER", provider.get_tracer("test"))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def test_the_span_is_a_child_of_the_announcement(spans: InMemorySpanExporter) -> None:
    seen = telemetry.SupervisorTelemetry("m", "latest")
    with trace.get_tracer("test").start_as_current_span("process policy.published") as announcement:
        seen.announced(3)
    with seen.reloading(2, target(3)):
        pass
    with seen.reloading(3, target(4)):
        pass
    first, second = [span for span in spans.get_finished_spans() if span.name == "reload_policy"]
    assert first.parent is not None
    assert first.parent.span_id == announcement.get_span_context().span_id
    assert first.attributes is not None
    assert first.attributes["upcycle.policy.version"] == 3
    assert second.parent is None


def test_a_refusal_is_an_error_of_its_kind(spans: InMemorySpanExporter) -> None:
    seen = telemetry.SupervisorTelemetry("m", "latest")
    why = VersionRefused(FailureKind.CANARY_MISMATCH, "off", may_pass_later=False)
    with pytest.raises(VersionRefused), seen.reloading(2, target(3)):
        raise why
    (span,) = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "canary_mismatch"


def test_only_so_many_announcements_are_remembered() -> None:
    seen = telemetry.SupervisorTelemetry("m", "latest")
    for version in range(100):
        seen.announced(version)
    assert sorted(seen._contexts) == list(range(68, 100))
