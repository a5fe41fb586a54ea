"""One request from first to last byte, and what it leaves behind: headers, metrics, span, usage row."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from opentelemetry.trace import Span

from model_gateway import telemetry
from model_gateway.adapters.sql_usage import SqlUsageSink
from model_gateway.domain.calls import CompletionCall
from model_gateway.domain.errors import BadReply, DeadlineExceeded, GatewayError
from model_gateway.domain.records import UsageRow
from model_gateway.domain.replies import TokenUsage
from model_gateway.domain.routing import ServedWeights
from model_gateway.domain.sessions import SessionKey
from model_gateway.domain.upstream.errors import UpstreamSlow
from model_gateway.domain.upstream.estimates import estimated, most_cost
from model_gateway.domain.upstream.providers import UpstreamModel
from model_gateway.usecases.limiting import Admission
from service_kit.telemetry import mark_failed

_CLIENT_CLOSED: Final = 499
_PAID_FOR: Final = (UpstreamSlow, BadReply, DeadlineExceeded)
"""Errors of requests that a provider has taken."""


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
    session: SessionKey | None = None
    """In which it is recorded."""
    admission: Admission | None = None
    upstream: UpstreamModel | None = None
    """The model of a provider that answers, or was asked to."""
    fallback_of: str = ""
    """The registered model that was asked for, where the upstream one stands in for it."""
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
        if self.upstream is not None:
            self.span.set_attribute("gen_ai.provider.name", self.upstream.provider.name)
        self.trace = telemetry.carrier_of(self.span)

    def asks(self, upstream: UpstreamModel, call: CompletionCall) -> None:
        """A model of a provider is to answer. Raises BudgetSpent."""
        if self.admission is not None:
            self.admission.reserve(most_cost(call, upstream))
        self.upstream = upstream

    def falls_back(self, upstream: UpstreamModel, call: CompletionCall) -> None:
        """It does so in the place of a registered model. Captured is what that one answers. Raises
        BudgetSpent."""
        self.asks(upstream, call)
        self.fallback_of, self.session = call.target.model, None

    def headers(self, request_id_header: str = "x-request-id") -> dict[str, str]:
        """Sent beside the answer; the request's id also in the header that its dialect reads."""
        sent = {"x-request-id": self.request_id, request_id_header: self.request_id, **self.trace}
        if self.weights is not None:
            sent["x-upcycle-model"] = self.weights.model
            sent["x-upcycle-version"] = str(self.weights.newest)
            sent["x-upcycle-digest"] = self.weights.digest
            if self.weights.oldest != self.weights.newest:
                sent["x-upcycle-oldest-version"] = str(self.weights.oldest)
        if self.upstream is not None:
            sent["x-upcycle-model"] = self.upstream.name
            sent["x-upcycle-provider"] = self.upstream.provider.name
            if self.fallback_of:
                sent["x-upcycle-fallback-of"] = self.fallback_of
        sent["x-upcycle-overhead-ms"] = f"{1000 * self._overhead_s():.2f}"
        return sent

    def first_byte(self) -> None:
        """Bytes go to the client now."""
        self.first_byte_s = time.perf_counter() - self.started

    def end(self, sink: SqlUsageSink) -> None:
        """Accounts for the request, however it ended."""
        duration_s = time.perf_counter() - self.started
        code = self.error.code if self.error else ""
        self._count_what_was_left()
        cost = self._cost()
        if self.admission is not None:
            self.admission.ended(self.usage.prompt_tokens + self.usage.completion_tokens, cost)
        model = self._model()
        # Models that do not exist must not become metric labels: their number is the caller's choice.
        label = model if self.weights is not None or self.upstream is not None else ""
        route = self.call.route.value if self.call else self.path
        series = telemetry.series(route, label, self.status)
        series.requests.inc()
        series.duration.observe(duration_s)
        series.overhead.observe(self._overhead_s())
        if label:
            self._count(label, cost)
        if self.span is not None:
            telemetry.describe(self.span, self.weights, self.usage, self.finish_reasons)
            if self.error is not None:
                mark_failed(self.span, code, self.error.message)
            self.span.end()
        sink.add(self._row(model, code, duration_s, cost))

    def _model(self) -> str:
        if self.upstream is not None:
            return self.upstream.name
        return self.call.target.model if self.call else ""

    def _cost(self) -> float:
        if self.upstream is None:
            return 0.0
        return self.upstream.price.of(self.usage.prompt_tokens, self.usage.completion_tokens)

    def _count_what_was_left(self) -> None:
        """A provider has read the prompt of an answer that no client got: the client left, or it came too
        late, or could not be read."""
        was_lost = self.status == _CLIENT_CLOSED or isinstance(self.error, _PAID_FOR)
        if was_lost and self.usage == TokenUsage() and self.upstream is not None and self.call is not None:
            self.usage = estimated(self.call, 0)

    def _count(self, model: str, cost: float) -> None:
        if cost:
            telemetry.COST.labels(model).inc(cost)
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

    def _row(self, model: str, code: str, duration_s: float, cost: float) -> UsageRow:
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
            cost=cost,
        )
