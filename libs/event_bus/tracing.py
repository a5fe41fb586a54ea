"""W3C trace context in message headers: a publish is a PRODUCER span, handling it a CONSUMER span below
it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import context, propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, StatusCode
from opentelemetry.util.types import AttributeValue

from identities import subjects
from service_kit.unrecorded import is_recorded
from upcycle.errors import Unavailable

_TRACER = trace.get_tracer("upcycle.event_bus")
_SYSTEM: Mapping[str, AttributeValue] = {"messaging.system": "nats"}


@contextmanager
def trace_of(headers: Mapping[str, str]) -> Iterator[None]:
    """What is stored or published within belongs to the trace that these headers name."""
    token = context.attach(propagate.extract(headers))
    try:
        yield
    finally:
        context.detach(token)


@contextmanager
def publishing(subject: str, event_id: str, headers: dict[str, str]) -> Iterator[Span]:
    """Span of one publish; writes its context into `headers`."""
    if not is_recorded():
        with _TRACER.start_as_current_span("publish") as span:
            propagate.inject(headers)
            yield span
        return
    template = subjects.template_of(subject)
    attributes: dict[str, AttributeValue] = {
        **_SYSTEM,
        "messaging.operation.type": "send",
        "messaging.operation.name": "publish",
        "messaging.destination.name": subject,
        "messaging.destination.template": template,
        "messaging.message.id": event_id,
    }
    with _TRACER.start_as_current_span(
        f"publish {template}", kind=SpanKind.PRODUCER, attributes=attributes
    ) as span:
        propagate.inject(headers)
        yield span


@contextmanager
def processing(
    subject: str, headers: Mapping[str, str], *, consumer: str, event_id: str, num_delivered: int
) -> Iterator[Span]:
    """Span of handling one message, child of the publish that its headers name."""
    if not is_recorded():
        with _TRACER.start_as_current_span("process", propagate.extract(headers)) as span:
            yield span
        return
    template = subjects.template_of(subject)
    attributes: dict[str, AttributeValue] = {
        **_SYSTEM,
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": subject,
        "messaging.destination.template": template,
        "messaging.consumer.group.name": consumer,
        "messaging.message.id": event_id,
        "upcycle.bus.num_delivered": num_delivered,
    }
    with _TRACER.start_as_current_span(
        f"process {template}",
        context=propagate.extract(headers),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield span


@contextmanager
def processing_batch(consumer: str, headers: Sequence[Mapping[str, str]]) -> Iterator[Span]:
    """Span of handling a batch: a trace of its own, linked to each message's publish."""
    attributes: dict[str, AttributeValue] = {
        **_SYSTEM,
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.consumer.group.name": consumer,
        "messaging.batch.message_count": len(headers),
    }
    with (
        _TRACER.start_as_current_span(
            f"process {consumer}",
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=list(map(Link, _origins(headers))),
            record_exception=False,
            set_status_on_exception=False,
        ) as span,
        marking_failure(),
    ):
        yield span


def mark_failed(error: Exception) -> None:
    """The handler whose span this is has failed."""
    span = trace.get_current_span()
    span.record_exception(error)
    span.set_status(StatusCode.ERROR, repr(error))


@contextmanager
def marking_failure() -> Iterator[None]:
    """An exception marks the current span as failed; Unavailable does not."""
    try:
        yield
    except Unavailable:
        raise
    except Exception as error:
        mark_failed(error)
        raise


def _origins(headers: Sequence[Mapping[str, str]]) -> Iterator[trace.SpanContext]:
    for one in headers:
        origin = trace.get_current_span(propagate.extract(one)).get_span_context()
        if origin.is_valid:
            yield origin
