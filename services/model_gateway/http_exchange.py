"""One request from first to last byte, and what it leaves behind: headers, metrics, span, usage row."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from opentelemetry.trace import Span

from model_gateway import telemetry
from model_gateway.adapters.sql_usage import SqlUsageSink
from model_gateway.domain.calls import CompletionCall
from model_gateway.domain.errors import GatewayError
from model_gateway.domain.records import UsageRow
from model_gateway.domain.replies import TokenUsage
from model_gateway.domain.routing import ServedWeights
from service_kit.telemetry import mark_failed


@dataclass(slots=True)
class HttpExchange:
    """Mutable on purpose: it is filled in as the request goes on, by one task."""

    request_id: str
    path: str
    started_at: datetime
    started: float = field(default_factory=time.perf_counter)
    key_id: str = ""
    call: CompletionCall | None = None
    span: Span | None = None
    trace: dict[str, str] = field(default_factory=dict)
    weights: ServedWeights | None = None
    usage: TokenUsage = field(default_factory=TokenUsage)
    finish_reasons: list[str] = field(default_factory=list)
    engine_s: float = 0.0
    tries: int = 1
    status: int = 0
    error: GatewayError | None = None
    first_byte_s: float | None = None

    def begin(self, call: CompletionCall, headers: Mapping[str, str]) -> None:
        """The request is understood."""
        self.call = call
        self.span = telemetry.start_span(call, headers, self.request_id)
        self.trace = telemetry.carrier_of(self.span)

    def headers(self) -> dict[str, str]:
        """Sent to the client beside the answer."""
        sent = {"x-request-id": self.request_id, **self.trace}
        if self.weights is not None:
            sent["x-upcycle-model"] = self.weights.model
            sent["x-upcycle-version"] = str(self.weights.newest)
            sent["x-upcycle-digest"] = self.weights.digest
            if self.weights.oldest != self.weights.newest:
                sent["x-upcycle-oldest-version"] = str(self.weights.oldest)
        sent["x-upcycle-overhead-ms"] = f"{1000 * self._overhead_s():.2f}"
        return sent

    def first_byte(self) -> None:
        """Bytes go to the client now."""
        self.first_byte_s = time.perf_counter() - self.started

    def end(self, sink: SqlUsageSink) -> None:
        """Accounts for the request, however it ended."""
        duration_s = time.perf_counter() - self.started
        code = self.error.code if self.error else ""
        model = self.call.target.model if self.call else ""
        # Models that do not exist must not become metric labels: their number is the caller's choice.
        label = model if self.weights is not None else ""
        route = self.call.route.value if self.call else self.path
        series = telemetry.series(route, label, self.status)
        series.requests.inc()
        series.duration.observe(duration_s)
        series.overhead.observe(self._overhead_s())
        if self.weights is not None:
            self._count(label)
        if self.span is not None:
            telemetry.describe(self.span, self.weights, self.usage, self.finish_reasons)
            if self.error is not None:
                mark_failed(self.span, code, self.error.message)
            self.span.end()
        sink.add(self._row(model, code, duration_s))

    def _count(self, model: str) -> None:
        prompt, completion = telemetry.token_series(model)
        prompt.inc(self.usage.prompt_tokens)
        completion.inc(self.usage.completion_tokens)
        if self.tries > 1:
            telemetry.RETRIES.labels(model).inc(self.tries - 1)
        if self.call is not None and self.call.stream and self.first_byte_s is not None:
            telemetry.FIRST_BYTE.labels(model).observe(self.first_byte_s)

    def _overhead_s(self) -> float:
        until = self.first_byte_s if self.first_byte_s is not None else time.perf_counter() - self.started
        return max(0.0, until - self.engine_s)

    def _row(self, model: str, code: str, duration_s: float) -> UsageRow:
        return UsageRow(
            request_id=self.request_id,
            key_id=self.key_id,
            path=self.path,
            model=model,
            version=self.weights.newest if self.weights else None,
            digest=self.weights.digest if self.weights else "",
            status=self.status,
            error=code,
            streamed=bool(self.call and self.call.stream),
            prompt_tokens=self.usage.prompt_tokens,
            completion_tokens=self.usage.completion_tokens,
            started_at=self.started_at,
            first_byte_s=self.first_byte_s,
            duration_s=duration_s,
        )
