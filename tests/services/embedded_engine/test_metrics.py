"""What /metrics keeps: nothing of a pinned version that was unloaded."""

from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import generate_latest

from embedded_engine.http.metrics import EngineMetrics
from embedded_engine.sampling import SamplingSpec
from embedded_engine.sequences import Sequence


def test_what_was_measured_of_an_unloaded_policy_is_forgotten() -> None:
    engine = SimpleNamespace(names=["m"], runner_of=lambda _: runner)
    metrics = EngineMetrics(cast(Any, engine))
    for version in range(50):
        name = f"m@v{version}"
        engine.names = ["m", name]
        for served in engine.names:
            metrics.count_finished(served, ended(), 2.0)
    engine.names = ["m"]
    text = generate_latest(metrics._registry).decode()
    assert "m@v" not in text
    assert 'vllm:request_success_total{finished_reason="stop",model_name="m"} 50.0' in text
    assert 'vllm:e2e_request_latency_seconds_count{model_name="m"} 50.0' in text


runner: Any = SimpleNamespace(
    running=(),
    waiting=(),
    counts=SimpleNamespace(prompt_tokens=0, cached_tokens=0, sampled_tokens=0, preemptions=0),
)


def ended() -> Sequence:
    sequence = Sequence([1], SamplingSpec(max_tokens=1))
    sequence.finish_reason, sequence.created_s, sequence.first_token_s = "stop", 1.0, 1.5
    return sequence
