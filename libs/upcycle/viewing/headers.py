"""What stands at the top of a run's page."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from upcycle.reporting.mix_texts import mix_lines
from upcycle.reporting.new_task_texts import new_tasks_line

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from upcycle.api.taskset.v1.taskset_pb2 import Run


def facts_of(run: "Run", versions: Sequence[int]) -> tuple[tuple[str, str], ...]:
    """Name and text of each; without those that are empty."""
    return tuple((name, text) for name, text in _facts(run, versions) if text)


def _facts(run: "Run", versions: Sequence[int]) -> Iterator[tuple[str, str]]:
    yield "model", run.spec.policy.model
    yield ("version" if len(versions) == 1 else "versions"), ", ".join(f"v{version}" for version in versions)
    yield "taskset", "" if run.mix else run.spec.taskset
    yield "recorded sessions", run.spec.sessions
    for line in mix_lines(run):
        yield "taskset", line
    yield "taskset digest", run.taskset_digest[:12]
    yield "source that judged it", run.source_digest[:12] or "not known"
    yield "submitted", moment(run.submitted_at) if run.HasField("submitted_at") else ""
    yield "ended", moment(run.finished_at) if run.HasField("finished_at") else ""
    yield "took", _took(run)
    yield "label", run.spec.label
    yield "steps", f"{run.step} of {run.spec.training.steps or 'no limit'}" if run.step else ""
    yield "episodes settled", f"{run.counts.settled} of {run.counts.requested}"
    ends = sorted(run.counts.groups_by_outcome.items())
    yield "groups", ", ".join(f"{count} {how}" for how, count in ends)
    yield "guided groups", f"{run.guided_groups} of {run.groups}" if run.guided_groups else ""
    yield "new tasks", new_tasks_line(run)
    usage = run.usage
    spent = {"engines": usage.engine_s, "environments": usage.environment_s, "trainer": usage.trainer_s}
    yield "machines", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in spent.items() if seconds)
    yield "cost", f"{usage.cost:.2f}" if usage.HasField("cost") else ""


def warnings_of(run: "Run") -> tuple[str, ...]:
    """Why it failed or ended by itself, and the planner's notice."""
    removed = "retention removed its groups and episodes" if run.HasField("removed_at") else ""
    return tuple(text for text in (run.failure, run.notice, removed) if text)


def moment(stamp: "Timestamp") -> str:
    """`2026-11-23 20:15 UTC`."""
    return datetime.fromtimestamp(stamp.seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _took(run: "Run") -> str:
    if not (run.HasField("submitted_at") and run.HasField("finished_at")):
        return ""
    seconds = run.finished_at.seconds - run.submitted_at.seconds
    return f"{seconds} s" if seconds < 600 else f"{seconds / 60:.0f} min"
