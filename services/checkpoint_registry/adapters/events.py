"""Writes events to the outbox in the transaction of the state change, in the trace of what caused them."""

from collections.abc import Iterator
from contextlib import contextmanager

from google.protobuf.message import Message
from opentelemetry import propagate, trace
from sqlalchemy import Connection

from sql_store import enqueue

_TRACER = trace.get_tracer("upcycle.checkpoint_registry")


def emit(connection: Connection, event: Message, *, model: str, event_id: str) -> None:
    """Stores the event in the outbox; it carries the context of the current span."""
    enqueue(connection, event, model=model, event_id=event_id)


@contextmanager
def caused_by(traceparent: str, name: str, checkpoint_id: str) -> Iterator[None]:
    """A span below the one that saved the checkpoint, however long ago and in whatever process that was."""
    parent = propagate.extract({"traceparent": traceparent}) if traceparent else None
    attributes = {"upcycle.checkpoint.id": checkpoint_id}
    with _TRACER.start_as_current_span(name, context=parent, attributes=attributes):
        yield
