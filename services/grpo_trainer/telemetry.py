"""Spans and metrics of training. Names are an interface."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import propagate, trace
from opentelemetry.trace import Link, SpanKind
from prometheus_client import Counter, Gauge, Histogram

from grpo_trainer.domain.alarms import DEFAULT_LIMITS, AlarmKind, AlarmLimits, alarms_of
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.domain.trajectories import GradedTrajectory, Settlement
from service_kit.idleness import SlotMeter

log = logging.getLogger(__name__)
_tracer = trace.get_tracer("upcycle.grpo_trainer")
_IDLE_WINDOW_S = 60.0
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

STEPS = Counter("upcycle_trainer_steps_total", "Optimizer steps that are durable", ["model"])
GROUPS = Counter("upcycle_trainer_groups_total", "Settled groups", ["model", "outcome", "reason"])
TOKENS = Counter("upcycle_trainer_trained_tokens_total", "Tokens that carried gradient", ["model"])
LEARN_S = Histogram("upcycle_trainer_learn_seconds", "Forward, backward, update of a step", buckets=_SECONDS)
STATES_REMOVED = Counter("upcycle_trainer_states_removed_total", "Training states no run needed", ["model"])
STALL_S = Histogram(
    "upcycle_trainer_stall_seconds", "Wait of a step for its copy and the state before it", buckets=_SECONDS
)
IDLE_S = Histogram("upcycle_trainer_idle_seconds", "Wait for a batch before a step", buckets=_SECONDS)
IDLE_RATIO = Gauge("upcycle_trainer_idle_ratio", "Share of the last 60 s that no step used", ["model"])
VERSION = Gauge("upcycle_trainer_policy_version", "Newest durable policy version", ["model"])
STALENESS = Histogram(
    "upcycle_trainer_staleness_versions", "Version in training minus oldest sampled", buckets=range(17)
)
ALARM = Gauge("upcycle_trainer_alarm", "1 while the alarm is raised", ["model", "kind"])
LAST = Gauge("upcycle_trainer_last_step", "Metrics of the last step", ["model", "metric"])


def count_step(model: str, version: int, metrics: Mapping[str, float]) -> None:
    """A step of a run or of an interactive session is durable."""
    STEPS.labels(model).inc()
    TOKENS.labels(model).inc(metrics.get("tokens", 0.0))
    VERSION.labels(model).set(version)
    for name, value in metrics.items():
        LAST.labels(model, name).set(value)


class TrainerInstruments:
    """Spans and metrics of training."""

    def __init__(self, limits: AlarmLimits = DEFAULT_LIMITS) -> None:
        """limits: of alarms, which are logged when they are raised and when they clear."""
        self._limits = limits
        self._alarms: dict[str, frozenset[AlarmKind]] = {}
        self._meters: dict[str, SlotMeter] = {}

    @contextmanager
    def step(
        self,
        spec: TrainingSpec,
        step: int,
        trace_headers: Mapping[str, str],
        trajectories: Sequence[GradedTrajectory],
    ) -> Iterator[str]:
        """Span of one step, in the run's trace, linked to its trajectories; gives its traceparent."""
        links = [link for one in trajectories if (link := _link(one)) is not None]
        attributes: dict[str, str | int] = {
            "upcycle.run.id": spec.run_id,
            "upcycle.training.step": step,
            "gen_ai.request.model": spec.model,
            "upcycle.training.trajectories": len(trajectories),
        }
        span = _tracer.start_as_current_span(
            "train_step",
            context=propagate.extract(trace_headers),
            kind=SpanKind.INTERNAL,
            attributes=attributes,
            links=links,
        )
        with self._meter(spec.model).playing(), span:
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            yield carrier.get("traceparent", "")

    def _meter(self, model: str) -> SlotMeter:
        if model not in self._meters:
            self._meters[model] = SlotMeter(1, window_s=_IDLE_WINDOW_S)
            IDLE_RATIO.labels(model).set_function(self._meters[model].idle_ratio)
        return self._meters[model]

    def count_step(self, spec: TrainingSpec, record: StepRecord) -> None:
        """A step is durable."""
        count_step(spec.model, record.version, record.metrics)
        LEARN_S.observe(record.metrics.get("learner_s", 0.0))
        STALL_S.observe(record.metrics.get("stall_s", 0.0))
        IDLE_S.observe(record.metrics.get("idle_s", 0.0))
        self._alarm(spec, record)
        for versions, count in record.staleness.items():
            for _ in range(count):
                STALENESS.observe(versions)

    def _alarm(self, spec: TrainingSpec, record: StepRecord) -> None:
        raised = {alarm.kind: alarm for alarm in alarms_of(record.metrics, self._limits)}
        known = self._alarms.get(spec.run_id, frozenset())
        for kind in AlarmKind:
            ALARM.labels(spec.model, kind.value).set(kind in raised)
            extra = {"run_id": spec.run_id, "step": record.step, "kind": kind.value}
            if kind in raised and kind not in known:
                log.warning("alarm_raised", extra={**extra, "why": raised[kind].text})
            elif kind in known and kind not in raised:
                log.info("alarm_cleared", extra=extra)
        if raised:
            self._alarms[spec.run_id] = frozenset(raised)
        else:
            self._alarms.pop(spec.run_id, None)

    def count_settled(self, spec: TrainingSpec, settlement: Settlement) -> None:
        """A group is over."""
        GROUPS.labels(spec.model, settlement.outcome.value, settlement.reason.value).inc()


def _link(trajectory: GradedTrajectory) -> Link | None:
    context = trace.get_current_span(propagate.extract(trajectory.trace_headers)).get_span_context()
    if not context.is_valid:
        return None
    return Link(context, {"upcycle.trajectory.id": trajectory.trajectory_id})
