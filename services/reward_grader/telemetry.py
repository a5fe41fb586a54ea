"""The grader's spans and metrics."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from prometheus_client import Counter, Histogram

from reward_grader.domain import Grade, GradingTask

_log = logging.getLogger(__name__)
_tracer = trace.get_tracer("upcycle.reward_grader")

TRAJECTORIES = Counter(
    "upcycle_grader_trajectories_total", "Trajectories by how grading ended", ["outcome", "kind"]
)
GRADE_S = Histogram("upcycle_grader_grade_seconds", "From record to outcome of one trajectory")


@contextmanager
def grading_span(task: GradingTask) -> Iterator[Span]:
    """The grading of one trajectory."""
    attributes = {
        "gen_ai.conversation.id": task.trajectory_id,
        "upcycle.episode.id": task.episode_id,
    }
    with _tracer.start_as_current_span("grade", kind=SpanKind.INTERNAL, attributes=attributes) as span:
        yield span


def describe_grade(span: Span, grade: Grade) -> None:
    """One `gen_ai.evaluation.result` event for the reward and for each top-level subscore."""
    span.set_attribute("upcycle.reward", grade.reward)
    _result(span, "reward", grade.reward, "pass" if grade.success else "fail")
    for subscore in grade.subscores:
        _result(span, subscore.name, subscore.value, None)


def _result(span: Span, name: str, value: float, label: str | None) -> None:
    attributes: dict[str, str | float] = {
        "gen_ai.evaluation.name": name,
        "gen_ai.evaluation.score.value": value,
    }
    if label is not None:
        attributes["gen_ai.evaluation.score.label"] = label
    span.add_event("gen_ai.evaluation.result", attributes)


def mark_failed(span: Span, kind: str, detail: str) -> None:
    """No reward; `kind` is a stable word."""
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, detail))


class WaitLog:
    """Says what trajectories wait for, without saying it once per trajectory."""

    def __init__(self, *, every_s: float = 10.0, max_texts: int = 100) -> None:
        self._every_s = every_s
        self._max_texts = max_texts
        self._said_at: dict[str, float] = {}

    def say(self, waiting_for: str) -> None:
        """Log a warning unless the same was logged a moment ago."""
        now = time.monotonic()
        if now - self._said_at.get(waiting_for, -self._every_s) < self._every_s:
            return
        if len(self._said_at) >= self._max_texts:
            self._said_at.clear()
        self._said_at[waiting_for] = now
        _log.warning("trajectories_wait", extra={"waiting_for": waiting_for})
