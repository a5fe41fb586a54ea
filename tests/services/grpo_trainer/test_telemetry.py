"""A step's span: in the run's trace, linked to every trajectory, more than the SDK's default of 128; and
the metrics and alarms of steps."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from functools import partial

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY
from tests.support.keeping import num_kept

from blob_store import BlobRef
from grpo_trainer import telemetry
from grpo_trainer.domain.alarms import watched
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.domain.trajectories import GradedTrajectory
from service_kit.idleness import SlotMeter
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
        body=BlobRef("k", "s", 1),
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


def test_an_alarm_is_a_gauge_and_one_log_line_when_it_is_raised_and_when_it_clears(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    instruments, spec = telemetry.TrainerInstruments(), TrainingSpec("run-alarm", "m-alarm", 8)
    labels = {"model": "m-alarm", "kind": "mismatch_kl"}
    seen, before = [], dict[str, float]()
    for step, kl in enumerate([0.2] * 10 + [0.05], start=1):
        now = {"mismatch_kl": kl, "idle_fraction": 0.25, "tokens_per_s": 10.0}
        before = now | watched(before, now, step=step, pace=5)
        instruments.count_step(spec, record(step, before))
        seen.append(REGISTRY.get_sample_value("upcycle_trainer_alarm", labels))
    assert seen == [0.0] * 7 + [1.0] * 3 + [0.0]
    said = [entry.message for entry in caplog.records if entry.message.startswith("alarm_")]
    assert said == ["alarm_raised", "alarm_cleared"]


def test_runs_without_an_alarm_are_not_kept() -> None:
    instruments = telemetry.TrainerInstruments()
    for number in range(50):
        instruments.count_step(TrainingSpec(f"run-{number}", "m-kept", 8), record(1, {}))
    assert num_kept(instruments) == 0


def test_the_idle_share_is_of_the_last_minute_not_of_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 0.0
    monkeypatch.setattr(telemetry, "SlotMeter", partial(SlotMeter, now=lambda: seconds))
    instruments, spec = telemetry.TrainerInstruments(), TrainingSpec("run-1", "m-idle", 8)

    def idle() -> float:
        return REGISTRY.get_sample_value("upcycle_trainer_idle_ratio", {"model": "m-idle"}) or 0.0

    with instruments.step(spec, 1, {}, []):
        seconds = 10.0
        assert idle() == 0.0
    seconds = 40.0
    assert idle() == pytest.approx(30 / 40)
    seconds = 65.0  # of the last 60 s, the first 5 were in the step
    assert idle() == pytest.approx(55 / 60)


def test_staleness_is_a_histogram_of_trajectories() -> None:
    before = REGISTRY.get_sample_value("upcycle_trainer_staleness_versions_bucket", {"le": "1.0"}) or 0.0
    telemetry.TrainerInstruments().count_step(TrainingSpec("run-1", "m-stale", 8), record(1, {}))
    after = REGISTRY.get_sample_value("upcycle_trainer_staleness_versions_bucket", {"le": "1.0"})
    assert after == before + 4  # of six trajectories two are three versions old


def record(step: int, metrics: dict[str, float]) -> StepRecord:
    return StepRecord(
        step=step,
        version=step,
        trajectory_ids=(),
        settlements=(),
        metrics=metrics,
        staleness={0: 3, 1: 1, 3: 2},
        completed_at=datetime(2026, 1, 1, tzinfo=UTC),
        traceparent="",
        saves_checkpoint=False,
        is_final=False,
        parent_checkpoint_id="",
    )
