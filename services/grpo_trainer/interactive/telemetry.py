"""Metrics of interactive steps: the same as those of runs, labelled with the model."""

from __future__ import annotations

from grpo_trainer.interactive.state import StepDone
from grpo_trainer.telemetry import LAST, STEPS, TOKENS, VERSION


def record_step(done: StepDone) -> None:
    """Count a durable step."""
    STEPS.labels(done.model).inc()
    TOKENS.labels(done.model).inc(done.metrics.get("tokens", 0.0))
    VERSION.labels(done.model).set(done.version)
    for name, value in done.metrics.items():
        LAST.labels(done.model, name).set(value)
