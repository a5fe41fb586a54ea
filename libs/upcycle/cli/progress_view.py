"""Shows the progress of a training run: curves in a terminal, lines at a bounded rate
elsewhere, or JSON lines."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from upcycle.cli.group_outcomes import groups_text, source_text, step_text
from upcycle.cli.live_view import LINES_EVERY_S, BoundedLines, bar, live, one_row, redraws, row
from upcycle.cli.output import fields_of, human, print_json
from upcycle.cli.run_follower import (
    AlarmCleared,
    AlarmRaised,
    Event,
    Judged,
    PeerAway,
    RewardAlone,
    RunChanged,
    ShowEvent,
    Stepped,
    TrainingProgress,
    VersionMeasured,
)
from upcycle.cli.sparkline import sparkline
from upcycle.cli.tracked_sets import (
    newest_rates,
    print_tracking,
    rate_text,
    rates_record,
    tracked_curves,
    tracking_line,
)
from upcycle.run_client import state_word

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from upcycle.api.registry.v1.registry_pb2 import Checkpoint
    from upcycle.api.taskset.v1.taskset_pb2 import Run
    from upcycle.api.training.v1.training_pb2 import StepPoint

METRICS: Final = (
    ("reward", "reward_mean", "{:.3f}"),
    ("success", "success_rate", "{:.1%}"),
    ("mismatch KL", "mismatch_kl", "{:.2e}"),
    ("entropy", "entropy", "{:.3f}"),
    ("clip fraction", "clip_fraction", "{:.1%}"),
    ("grad norm", "grad_norm", "{:.3g}"),
    ("tokens/s", "tokens_per_s", "{:,.0f}"),
    ("trainer idle", "idle_fraction", "{:.0%}"),
)
"""What is drawn: name, metric, format."""
_LABEL_COLUMNS: Final = 30
_TITLE_KINDS: Final = 3
"""Outcomes of groups that fit in the title; all of them stand below."""


@contextmanager
def progress_view(as_json: bool) -> Iterator[ShowEvent]:
    """What to call with each event: JSON lines, curves in a terminal, or lines."""
    console = human()
    if as_json:
        yield _json_line
    elif redraws(console):
        with dashboard(console) as show:
            yield show
    else:
        lines = Lines(console)
        try:
            yield lines
        finally:
            lines.close()


class Lines:
    """For logs and pipes: a line for each verdict, alarm and state of the run; of steps and of groups that
    ended, each at most one in `every_s` seconds, the newest last. It needs a running event loop."""

    def __init__(self, console: "Console", every_s: float = LINES_EVERY_S) -> None:
        self._console = console
        self._groups = BoundedLines(console, every_s)
        self._steps = BoundedLines(console, every_s)
        self._state = 0
        self._warned_at = 0

    def __call__(self, progress: TrainingProgress, event: Event) -> None:
        """Print the event, and the groups that ended since."""
        is_news = not isinstance(event, RunChanged) or event.run.state != self._state
        if isinstance(event, RunChanged):
            self._warn(event.run)
            self._state = event.run.state
        if isinstance(event, Stepped):
            rates = (rate_text(one) for one in newest_rates(progress.run).values())
            self._steps.show("  ".join((event_line(event), *rates)))
        elif is_news:
            self._line(event_line(event))
        run = progress.run
        account = "; ".join(text for text in (groups_text(run), *map(source_text, run.sources)) if text)
        if account:
            self._groups.show(f"  {account}")

    def close(self) -> None:
        """Print the lines that are still to come."""
        self._steps.close()
        self._groups.close()

    def _warn(self, run: "Run") -> None:
        """The planner's notice: when it appears, then each time the number of ended groups doubles."""
        total = sum(run.counts.groups_by_outcome.values())
        if not run.notice:
            self._warned_at = 0
        elif total >= 2 * self._warned_at:
            self._warned_at = max(total, 1)
            self._line(f"warning: {run.notice}")

    def _line(self, text: str) -> None:
        self._steps.flush()
        self._console.print(one_row(text), markup=False, soft_wrap=True)


@contextmanager
def dashboard(console: "Console") -> Iterator[ShowEvent]:
    """Curves that redraw themselves; verdicts and alarms stay above them as lines."""
    with live(console) as frame:

        def show(progress: TrainingProgress, event: Event) -> None:
            if not isinstance(event, Stepped | RunChanged):
                console.print(one_row(event_line(event)), markup=False)
            frame.update(dashboard_of(progress, console.width))

        yield show


def dashboard_of(progress: TrainingProgress, width: int) -> "RenderableType":
    """A line about the run, and its curves as a table."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 1))
    points = [progress.points[step] for step in sorted(progress.points)]
    for name, values, last in curves(points, progress.verdicts.values()):
        table.add_row(name, sparkline(values, max(8, width - _LABEL_COLUMNS)), last)
    for name, values, last in tracked_curves(progress.run):
        table.add_row(name, sparkline(values, max(8, width - _LABEL_COLUMNS)), last)
    for text in progress.run.tracking_alarms:
        table.add_row(Text("alarm", style="red"), Text(one_row(text)))
    if notice := progress.run.notice:
        table.add_row(Text("warning", style="yellow"), Text(one_row(notice)))
    for source in progress.run.sources:
        table.add_row("evaluation", Text(source_text(source)))
    for alarm in progress.alarms.values():
        table.add_row(Text("alarm", style="red"), Text(one_row(alarm.text)))
    for peer in sorted(progress.away):
        table.add_row(Text("away", style="yellow"), f"{peer} does not answer")
    limit, groups = progress.run.spec.training.steps, groups_text(progress.run)
    is_cut = groups != groups_text(progress.run, _TITLE_KINDS)
    return Group(
        row(_title(progress), "bold"),
        *([bar(_step(progress), limit, width)] if limit else []),
        row(_phases(progress)),
        *([Text(groups)] if is_cut else []),
        table,
    )


def curves(
    points: "Sequence[StepPoint]", verdicts: "Iterable[Checkpoint]"
) -> list[tuple[str, list[float], str]]:
    """(name, values, last value as text) of everything that was measured at least once."""
    rows = []
    for name, metric, form in METRICS:
        values = [point.metrics.values[metric] for point in points if metric in point.metrics.values]
        rows.append((name, values, form.format(values[-1]) if values else ""))
    staleness = [_staleness(point) for point in points]
    rows.insert(4, ("staleness", staleness, f"{staleness[-1]:.1f}" if staleness else ""))
    judged = sorted((one for one in verdicts if one.HasField("gate")), key=lambda one: one.step)
    held_out = [one.gate.candidate_rate for one in judged]
    rows.insert(2, ("held-out", held_out, f"{held_out[-1]:.1%}" if held_out else ""))
    rates = [one.metrics.values["learning_rate"] for one in points if "learning_rate" in one.metrics.values]
    if len(set(rates)) > 1:  # a constant one says nothing
        rows.append(("learning rate", rates, f"{rates[-1]:.2e}"))
    return [row for row in rows if row[1]]


def event_line(event: Event) -> str:
    """An event in one line."""
    match event:
        case RunChanged(run):
            return f"{run.run_id} is {state_word(run)}" + (f": {run.failure}" if run.failure else "")
        case Stepped(point):
            return _step_line(point)
        case Judged(checkpoint):
            return _verdict(checkpoint)
        case AlarmRaised(alarm):
            return f"alarm {alarm.kind}: {alarm.text}"
        case AlarmCleared(kind):
            return f"alarm {kind} is over"
        case VersionMeasured() | RewardAlone():
            return tracking_line(event)
        case PeerAway(peer, is_away):
            return f"{peer} does not answer" if is_away else f"{peer} answers again"


def _step_line(point: "StepPoint") -> str:
    measured = [
        f"{name} {form.format(point.metrics.values[metric])}"
        for name, metric, form in METRICS
        if metric in point.metrics.values
    ]
    return (
        f"step {point.step:<4} v{point.version:<4} {'  '.join(measured)}  staleness {_staleness(point):.1f}"
    )


def _verdict(checkpoint: "Checkpoint") -> str:
    from upcycle.api.registry.v1.registry_pb2 import CHECKPOINT_STATE_PROMOTED

    verdict = "promoted" if checkpoint.state == CHECKPOINT_STATE_PROMOTED else "held"
    rate = f", held-out {checkpoint.gate.candidate_rate:.1%}" if checkpoint.HasField("gate") else ""
    return f"{checkpoint.checkpoint_id} {verdict}{rate}: {checkpoint.reason}"


def _staleness(point: "StepPoint") -> float:
    """Mean age of the step's trajectories, in versions."""
    counts = point.metrics.staleness
    total = sum(counts.values())
    return sum(age * count for age, count in counts.items()) / total if total else 0.0


def _step(progress: TrainingProgress) -> int:
    return max(progress.run.step, progress.last_step)


def _phases(progress: TrainingProgress) -> str:
    """What episodes and groups do now, and how old the trajectories of the newest step were."""
    counts = progress.run.counts
    states = counts.by_state
    points = progress.points
    staleness = f"staleness {_staleness(points[max(points)]):.1f}" if points else ""
    parts = (
        f"episodes {counts.settled} ended",
        f"{states.get('failed', 0)} errors",
        f"{states.get('planned', 0)} in play",
        f"{states.get('sampled', 0)} in grading",
        f"groups open {counts.groups_open}",
        staleness,
    )
    return " · ".join(part for part in parts if part)


def _title(progress: TrainingProgress) -> str:
    run = progress.run
    parts = (
        run.run_id,
        run.spec.policy.model,
        state_word(run),
        step_text(run, _step(progress)),
        f"v{run.policy_version}",
        groups_text(run, _TITLE_KINDS),
    )
    return "  ".join(part for part in parts if part)


def _json_line(progress: TrainingProgress, event: Event) -> None:
    match event:
        case RunChanged(run):
            print_json("progress", run)
        case Stepped(point):
            print_json("step", {**fields_of(point), **rates_record(progress.run)})
        case VersionMeasured() | RewardAlone():
            print_tracking(event)
        case Judged(checkpoint):
            print_json("checkpoint", checkpoint)
        case AlarmRaised(alarm):
            print_json("alarm", alarm)
        case AlarmCleared(kind):
            print_json("alarm_over", {"alarm": kind})
        case PeerAway(peer, is_away):
            print_json("peer", {"peer": peer, "away": is_away})
