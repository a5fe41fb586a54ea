"""Writes events to the outbox in the transaction of the state change, in the trace of what caused them."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import propagate, trace

_TRACER = trace.get_tracer("upcycle.checkpoint_registry")


@contextmanager
def caused_by(traceparent: str, name: str, checkpoint_id: str) -> Iterator[None]:
    """A span below the one that saved the checkpoint, however long ago and in whatever process that was."""
    parent = propagate.extract({"traceparent": traceparent}) if traceparent else None
    attributes = {"upcycle.checkpoint.id": checkpoint_id}
    with _TRACER.start_as_current_span(name, context=parent, attributes=attributes):
        yield
