"""GET /metrics under vLLM's names, so that dashboards and autoscalers know no difference."""

import contextlib
from collections.abc import Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from embedded_engine.engine import EmbeddedEngine
from embedded_engine.sequences import Sequence

_LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_GAUGES = (
    ("vllm:num_requests_running", "Sequences in the batch."),
    ("vllm:num_requests_waiting", "Sequences without a slot."),
)
_TOTALS = {
    "prompt_tokens": ("vllm:prompt_tokens", "Prompt tokens."),
    "cached_tokens": ("vllm:prefix_cache_hits", "Prompt tokens not computed again."),
    "sampled_tokens": ("vllm:generation_tokens", "Sampled tokens."),
}
"""By the name in RunnerCounts."""


class EngineMetrics:
    """Reads the runners' totals when asked; measures the latency of finished requests. What was measured
    under a name goes when its policy is unloaded: each pinned version has a name of its own."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self._finished: dict[tuple[str, str], int] = {}
        self._names: set[str] = set()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._e2e = self._latency("vllm:e2e_request_latency_seconds", "From arrival to the last token.")
        self._first = self._latency("vllm:time_to_first_token_seconds", "From arrival to the first token.")

    def _latency(self, name: str, text: str) -> Histogram:
        buckets = _LATENCY_BUCKETS_S
        return Histogram(name, text, ["model_name"], buckets=buckets, registry=self._registry)

    def count_finished(self, name: str, sequence: Sequence, now_s: float) -> None:
        """Count an ended sequence."""
        if name not in self._names:
            self._forget_unloaded()
            self._names.add(name)
        key = (name, str(sequence.finish_reason))
        self._finished[key] = self._finished.get(key, 0) + 1
        self._e2e.labels(name).observe(now_s - sequence.created_s)
        if sequence.first_token_s:
            self._first.labels(name).observe(sequence.first_token_s - sequence.created_s)

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client asks for."""
        self._forget_unloaded()
        running, waiting = (GaugeMetricFamily(name, text, labels=["model_name"]) for name, text in _GAUGES)
        totals = {
            total: CounterMetricFamily(name, text, labels=["model_name"])
            for total, (name, text) in _TOTALS.items()
        }
        for name in self._engine.names:
            runner = self._engine.runner_of(name)
            running.add_metric([name], len(runner.running))
            waiting.add_metric([name], len(runner.waiting))
            for total, family in totals.items():
                family.add_metric([name], getattr(runner.counts, total))
        ended = CounterMetricFamily(
            "vllm:request_success", "Ended sequences.", labels=["model_name", "finished_reason"]
        )
        for (name, reason), count in self._finished.items():
            ended.add_metric([name, reason], count)
        yield from (running, waiting, *totals.values(), ended)

    def _forget_unloaded(self) -> None:
        for name in self._names.difference(self._engine.names):
            self._names.remove(name)
            for latency in (self._e2e, self._first):
                with contextlib.suppress(KeyError):  # nothing was measured
                    latency.remove(name)
            for key in [key for key in self._finished if key[0] == name]:
                del self._finished[key]

    async def handle(self, request: web.Request) -> web.Response:
        """The endpoint."""
        return web.Response(body=generate_latest(self._registry), content_type="text/plain")
