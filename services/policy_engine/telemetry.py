"""Metrics of an engine supervisor, and the span of a reload in the trace that caused it."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue
from prometheus_client import Counter, Gauge, Histogram

from policy_engine.domain import EngineTarget, Reloaded, VersionRefused
from service_kit.telemetry import mark_failed

_SECONDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
_REMEMBERED: Final = 32
_TRACER = trace.get_tracer("upcycle.policy_engine")

VERSION: Final = Gauge("upcycle_engine_version", "Proven version that serves.", ["model", "channel"])
RELOADS: Final = Counter("upcycle_engine_reloads", "Reloads by outcome.", ["model", "channel", "outcome"])
PAUSED: Final = Histogram(
    "upcycle_engine_paused_seconds", "Time a reload stopped sampling.", ["model", "channel"], buckets=_SECONDS
)
FETCH: Final = Histogram(
    "upcycle_engine_fetch_seconds",
    "Time to fetch and check a version.",
    ["model", "channel"],
    buckets=_SECONDS,
)


class SupervisorTelemetry:
    """One supervisor's metrics and spans."""

    def __init__(self, model: str, channel: str) -> None:
        self._labels = (model, channel)
        self._contexts: OrderedDict[int, Context] = OrderedDict()

    def announced(self, version: int) -> None:
        """Called while the event that announced a version is handled: its trace is the reload's."""
        self._contexts[version] = context.get_current()
        while len(self._contexts) > _REMEMBERED:
            self._contexts.popitem(last=False)

    def serves(self, version: int) -> None:
        """A version is proven and serves."""
        VERSION.labels(*self._labels).set(version)

    @contextmanager
    def reloading(self, from_version: int, target: EngineTarget) -> Iterator[None]:
        """Around one reload, its announcement included."""
        attributes: dict[str, AttributeValue] = {
            "upcycle.policy.model": self._labels[0],
            "upcycle.channel": self._labels[1],
            "upcycle.policy.from_version": from_version,
            "upcycle.policy.version": target.version,
            "upcycle.policy.digest": target.digest,
        }
        with _TRACER.start_as_current_span(
            "reload_policy",
            context=self._contexts.get(target.version),
            kind=SpanKind.INTERNAL,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except VersionRefused as error:
                mark_failed(span, error.kind.value, str(error))
                raise

    def count_reload(self, done: Reloaded) -> None:
        """A reload was proven."""
        RELOADS.labels(*self._labels, "reloaded").inc()
        PAUSED.labels(*self._labels).observe(done.paused_s)
        FETCH.labels(*self._labels).observe(done.fetch_s)
        self.serves(done.serving.version)

    def count_refusal(self, why: VersionRefused) -> None:
        """A version was refused."""
        RELOADS.labels(*self._labels, why.kind.value).inc()
