"""One trace from the publisher through the handler to what the handler publishes; batches link."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import (
    Seen,
    fact_spec,
    failed,
    running,
    subscribe,
    subscribe_batch,
    subscribe_ephemeral,
)
from tests.support.waiting import until

from event_bus import Delivery, EventBus, tracing
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed, GroupShortened


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The bus's spans, without touching the process-wide provider."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_TRACER", provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = [span for span in spans.get_finished_spans() if span.name == name]
    return found


async def test_publish_process_publish_process_is_one_nested_trace(
    nats_server: NatsFactory, spans: InMemorySpanExporter
) -> None:
    spec, end = fact_spec(), Seen()

    def setup(bus: EventBus) -> None:
        async def handler(delivery: Delivery[Any]) -> None:
            await bus.publish(GroupShortened(group_id="g"), model="m.1", event_id="second")

        subscribe(bus, spec, handler)
        subscribe_ephemeral(bus, [GroupShortened], end)

    async with running(nats_server(), spec, setup=setup) as bus:
        await bus.publish(failed("a"), model="m.1", event_id="first")
        await until(lambda: len(spans.get_finished_spans()) == 4)
    sent = named(spans, "publish up.{tenant}.evt.episode.failed.{model}")
    handled = named(spans, "process up.{tenant}.evt.episode.failed.{model}")
    sent_on = named(spans, "publish up.{tenant}.evt.group.shortened.{model}")
    followed = named(spans, "process up.{tenant}.evt.group.shortened.{model}")
    for parent, child in ((sent, handled), (handled, sent_on), (sent_on, followed)):
        assert child.parent is not None
        assert child.parent.span_id == parent.context.span_id
        assert child.context.trace_id == sent.context.trace_id
    assert (sent.kind, handled.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert (
        dict(handled.attributes or {})["messaging.destination.name"] == "up.default.evt.episode.failed.m%2E1"
    )
    assert dict(handled.attributes or {})["messaging.consumer.group.name"] == "tested"
    carried = trace.get_current_span(propagate.extract(end.deliveries[0].headers)).get_span_context()
    assert carried.span_id == sent_on.context.span_id


async def test_a_batch_links_to_every_publish(nats_server: NatsFactory, spans: InMemorySpanExporter) -> None:
    spec, done = fact_spec(max_deliver=-1), asyncio.Event()
    server = nats_server()

    async def handler(deliveries: Sequence[Delivery[Any]]) -> None:
        assert len(deliveries) == 3
        done.set()

    async with running(server) as bus:
        for detail in "abc":
            await bus.publish(failed(detail), model="m", event_id=detail)
    async with running(server, spec, setup=lambda bus: subscribe_batch(bus, spec, handler)):
        await done.wait()
        await until(lambda: any(one.name == "process tested" for one in spans.get_finished_spans()))
    published = [one for one in spans.get_finished_spans() if one.kind is SpanKind.PRODUCER]
    batch = named(spans, "process tested")
    assert [link.context.span_id for link in batch.links] == [one.context.span_id for one in published]


async def test_a_failed_handler_marks_its_span(nats_server: NatsFactory, spans: InMemorySpanExporter) -> None:
    spec = fact_spec(max_deliver=1)

    async def handler(_: Delivery[EpisodeFailed]) -> None:
        raise ValueError("no")

    async with running(nats_server(), spec, setup=lambda bus: subscribe(bus, spec, handler)) as bus:
        await bus.publish(failed("a"), model="m", event_id="a")
        await until(
            lambda: any(
                one.name == "process up.{tenant}.evt.episode.failed.{model}"
                for one in spans.get_finished_spans()
            )
        )
    handled = named(spans, "process up.{tenant}.evt.episode.failed.{model}")
    assert not handled.status.is_ok
    assert "ValueError" in str(dict(handled.attributes or {})["upcycle.bus.dead_letter"])
