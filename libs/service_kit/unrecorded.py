"""Spans where nothing records them: they carry the ids on, and cost next to nothing."""

from contextlib import AbstractContextManager
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext

_IDS: Final = RandomIdGenerator()


class Unrecorded(trace.TracerProvider):
    """Its spans have the ids of their parent. One without a parent gets ids, and is marked as not sampled."""

    def get_tracer(self, *_: Any, **__: Any) -> trace.Tracer:
        """The same for all."""
        return _TRACER


class _IdsOnly(trace.Tracer):
    def start_span(self, name: str, context: Context | None = None, *_: Any, **__: Any) -> Span:
        parent = trace.get_current_span(context)
        if parent.get_span_context().is_valid:
            return parent
        return NonRecordingSpan(
            SpanContext(_IDS.generate_trace_id(), _IDS.generate_span_id(), is_remote=False)
        )

    def start_as_current_span(  # type: ignore[override] # the class that it returns there is private
        self, name: str, context: Context | None = None, *_: Any, **__: Any
    ) -> AbstractContextManager[Span]:
        return trace.use_span(self.start_span(name, context))


_TRACER: Final = _IdsOnly()


def is_recorded() -> bool:
    """Whether spans of this process may be recorded. `setup_telemetry` says no where no exporter is set."""
    return not isinstance(trace.get_tracer_provider(), Unrecorded)
