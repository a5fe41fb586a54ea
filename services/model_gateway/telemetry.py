"""Names under which the gateway is seen: metrics and span attributes (GenAI conventions)."""

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from opentelemetry import propagate, trace
from opentelemetry.environment_variables import OTEL_PROPAGATORS
from opentelemetry.trace import Span, SpanKind
from opentelemetry.util.types import AttributeValue
from prometheus_client import Counter, Gauge, Histogram

from model_gateway.domain.calls import ApiRoute, CompletionCall
from model_gateway.domain.replies import TokenUsage
from model_gateway.domain.routing import ServedWeights
from service_kit.unrecorded import is_recorded

_SECONDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
_OVERHEAD: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 1)
_PROMOTION: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)

REQUESTS: Final = Counter("upcycle_gateway_requests", "Requests by outcome.", ["route", "model", "status"])
IN_FLIGHT: Final = Gauge("upcycle_gateway_in_flight", "Requests being served.")
DURATION: Final = Histogram(
    "upcycle_gateway_request_seconds", "Whole request.", ["route", "model"], buckets=_SECONDS
)
FIRST_BYTE: Final = Histogram(
    "upcycle_gateway_first_byte_seconds", "Until the first byte of a stream.", ["model"], buckets=_SECONDS
)
OVERHEAD: Final = Histogram(
    "upcycle_gateway_overhead_seconds", "Request time that no engine spent.", ["route"], buckets=_OVERHEAD
)
TOKENS: Final = Counter("upcycle_gateway_tokens", "Tokens by kind.", ["model", "kind"])
RETRIES: Final = Counter("upcycle_gateway_retries", "Tries after the first of a request.", ["model"])
PROMOTED_TO_FIRST_TOKEN: Final = Histogram(
    "upcycle_gateway_promoted_to_first_token_seconds",
    "From a promotion to the first token of the new weights served here.",
    ["model"],
    buckets=_PROMOTION,
)
CANARY_REQUESTS: Final = Counter(
    "upcycle_gateway_canary_requests",
    "Requests in conversations that meet a canary release, by what answered: `canary`, or `head` where no "
    "engine serves it or its engine failed.",
    ["model", "answered_by"],
)
SHADOWS: Final = Counter(
    "upcycle_gateway_shadow_requests",
    "Requests that were to be sent to a canary release unseen, by what became of them: recorded, "
    "queue_full, gave_way (to requests), not_served, failed.",
    ["model", "outcome"],
)
CAPTURE_DROPPED: Final = Counter("upcycle_gateway_capture_dropped", "Captured calls given up.", ["why"])
CAPTURE_REDACTED: Final = Counter(
    "upcycle_gateway_capture_redacted",
    "Captured calls by what their redaction came to. Stored are unchanged and changed; dropped (by the "
    "function), failed, overran (its deadline) and stopped (the gateway did) are not.",
    ["outcome"],
)
BEYOND_BOUNDS: Final = Counter(
    "upcycle_gateway_calls_beyond_bounds",
    "Answered calls that are not recorded, as their session has as many calls or bytes as it may.",
    ["model"],
)
UPSTREAM_TRIES: Final = Counter(
    "upcycle_gateway_upstream_tries",
    "Requests sent to providers, by how they ended.",
    ["provider", "outcome"],
)
COST: Final = Counter(
    "upcycle_gateway_cost", "Cost of tokens by the prices of the providers' file.", ["model"]
)
LIMITED: Final = Counter("upcycle_gateway_limited", "Requests refused by a limit of their key.", ["limit"])
USAGE_DROPPED: Final = Counter("upcycle_gateway_usage_dropped", "Usage rows that were not stored.")


class Series(NamedTuple):
    """The series of one kind of request; looked up once, as `labels` costs more than what it finds."""

    requests: Counter
    duration: Histogram
    overhead: Histogram


@lru_cache(maxsize=4096)
def series(route: str, model: str, status: int) -> Series:
    """Where a request of this kind is counted."""
    return Series(
        REQUESTS.labels(route, model, str(status)), DURATION.labels(route, model), OVERHEAD.labels(route)
    )


@lru_cache(maxsize=1024)
def token_series(model: str) -> tuple[Counter, Counter]:
    """Prompt and completion tokens of a model."""
    return TOKENS.labels(model, "prompt"), TOKENS.labels(model, "completion")


_TRACER = trace.get_tracer("upcycle.model_gateway")
_IS_PLAIN: Final = OTEL_PROPAGATORS not in os.environ
# GenAI's names; what has none there is named as its route.
_OPERATION: Final = {
    ApiRoute.CHAT: "chat",
    ApiRoute.CHAT_TOKENS: "chat",
    ApiRoute.COMPLETIONS: "text_completion",
    ApiRoute.GENERATE: "generate",
    ApiRoute.TOKENIZE: "tokenize",
    ApiRoute.DETOKENIZE: "detokenize",
}


def start_span(call: CompletionCall, headers: Mapping[str, str], request_id: str) -> Span:
    """`chat {model}`, below the caller's span if it sent one."""
    parent = propagate.extract(headers) if "traceparent" in headers else None
    if not is_recorded():
        return _TRACER.start_span("", context=parent)
    name = f"{_OPERATION[call.route]} {call.target.model}"
    attributes = _asked_for(call, request_id)
    return _TRACER.start_span(name, context=parent, kind=SpanKind.CLIENT, attributes=attributes)


def _asked_for(call: CompletionCall, request_id: str) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": _OPERATION[call.route],
        "gen_ai.provider.name": "upcycle",
        "gen_ai.request.model": str(call.body["model"]),
        "gen_ai.request.stream": call.stream,
        "upcycle.request.id": request_id,
    }
    for field, name in (("temperature", "temperature"), ("seed", "seed"), ("max_tokens", "max_tokens")):
        value = call.body.get(field)
        if isinstance(value, int | float):
            attributes[f"gen_ai.request.{name}"] = value
    return attributes


def carrier_of(span: Span) -> dict[str, str]:
    """W3C headers for the spans below this one, or those that OTEL_PROPAGATORS names."""
    context = span.get_span_context()
    if _IS_PLAIN and context.is_valid and not context.trace_state:
        # What the propagators would make of it, without a context that is made for them.
        ids = f"{context.trace_id:032x}-{context.span_id:016x}"
        return {"traceparent": f"00-{ids}-{context.trace_flags:02x}"}
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    return carrier


def describe(span: Span, weights: ServedWeights | None, usage: TokenUsage, finish_reasons: list[str]) -> None:
    """What came back."""
    if not span.is_recording():
        return
    attributes: dict[str, AttributeValue] = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
    }
    if weights is not None:
        attributes["gen_ai.response.model"] = weights.checkpoint_id
        attributes["upcycle.policy.version"] = weights.newest
        attributes["upcycle.policy.digest"] = weights.digest
    if finish_reasons:
        attributes["gen_ai.response.finish_reasons"] = finish_reasons
    span.set_attributes(attributes)
