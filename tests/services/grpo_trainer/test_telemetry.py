"""A step's span: in the run's trace, linked to every trajectory, more than the SDK's default of 128."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from grpo_trainer.adapters import telemetry
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.trajectories import GradedTrajectory, StoredBody
from service_kit.telemetry import span_limits

RUN_TRACE = "a" * 32


def trajectory(index: int, headers: dict[str, str]) -> GradedTrajectory:
    return GradedTrajectory(
        trajectory_id=f"traj-{index}",
        episode_id=f"e{index}",
        run_id="run-1",
        group_id="g",
        member=index,
        group_size=512,
        reward=0.0,
        success=False,
        body=StoredBody("k", "s", 1),
        oldest_version=0,
        newest_version=0,
        task_digest="d",
        may_train=True,
        sequence=index,
        trace_headers=headers,
    )


def test_a_step_joins_the_runs_trace_and_links_to_512_trajectories() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(span_limits=span_limits())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    before, telemetry._tracer = telemetry._tracer, tracer
    try:
        sampled = [
            trajectory(index, {"traceparent": f"00-{index + 1:032x}-{index + 1:016x}-01"})
            for index in range(512)
        ]
        untraced = trajectory(600, {})
        spec = TrainingSpec("run-1", "m", 8)
        run = {"traceparent": f"00-{RUN_TRACE}-{'b' * 16}-01"}
        with telemetry.TrainerInstruments().step(spec, 3, run, [*sampled, untraced]) as traceparent:
            assert trace.get_current_span().is_recording()
    finally:
        telemetry._tracer = before
    (span,) = exporter.get_finished_spans()
    assert span.name == "train_step"
    assert span.attributes is not None
    assert span.attributes["upcycle.training.step"] == 3
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == RUN_TRACE
    assert traceparent.split("-")[1] == RUN_TRACE
    assert len(span.links) == 512
    assert {link.context.trace_id for link in span.links} == set(range(1, 513))
