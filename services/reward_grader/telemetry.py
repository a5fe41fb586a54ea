"""The grader's spans and metrics."""

from contextlib import AbstractContextManager

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind
from prometheus_client import Counter, Histogram

from reward_grader.domain import Grade, GradingTask

_tracer = trace.get_tracer("upcycle.reward_grader")

TRAJECTORIES = Counter(
    "upcycle_grader_trajectories_total", "Trajectories by how grading ended", ["outcome", "kind"]
)
JUDGED = Counter(
    "upcycle_grader_judge_questions_total",
    "Questions of scenarios to judges, by what came of them",
    ["outcome"],
)
JUDGE_TOKENS = Counter(
    "upcycle_grader_judge_tokens_total", "Tokens of judges, as their servers count", ["kind"]
)
GRADE_S = Histogram("upcycle_grader_grade_seconds", "From record to outcome of one trajectory")


def grading_span(task: GradingTask) -> AbstractContextManager[Span]:
    """The grading of one trajectory."""
    attributes = {
        "gen_ai.conversation.id": task.identity.trajectory_id,
        "upcycle.episode.id": task.identity.episode_id,
    }
    return _tracer.start_as_current_span("grade", kind=SpanKind.INTERNAL, attributes=attributes)


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
