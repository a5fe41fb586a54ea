"""Shows the progress of an evaluation: bar, reward, errors, and a mark for each attempt of each task."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from upcycle.cli.live_view import BoundedLines, bar, live, redraws, row
from upcycle.cli.output import human
from upcycle.cli.report_text import one_line
from upcycle.wording import amount

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from upcycle.results import Run

WAITING: Final = "·"
SUCCEEDED: Final = "●"
WRONG: Final = "○"
MISSING: Final = "×"
LEGEND: Final = f"{SUCCEEDED} success  {WRONG} none  {MISSING} error  {WAITING} not yet"
MAX_MARKS: Final = 4000
"""An evaluation of more attempts has no marks: they would not fit, and are dear to ask for."""
_STYLES: Final = {SUCCEEDED: "green", WRONG: "red", MISSING: "yellow", WAITING: "dim"}
_OTHER_ROWS: Final = 6
"""Of the terminal: bar, counts, legend, and a line before and after."""
_SLUG_COLUMNS: Final = 32


@dataclass(frozen=True, slots=True)
class EvalProgress:
    """How far an evaluation is. num_planned: episodes, the same from beginning to end. phases: what the
    episodes that are not over do. attempts: by task, a mark for each; empty where they are not known."""

    num_planned: int
    num_graded: int
    num_errors: int
    reward: str
    success: str
    phases: Mapping[str, int] = field(default_factory=dict)
    attempts: Mapping[str, str] = field(default_factory=dict)
    state: str = ""

    def __str__(self) -> str:
        share = f" ({self.num_graded / self.num_planned:.0%})" if self.num_planned else ""
        errors = amount(self.num_errors, "error")
        phases = [f"{count} {phase}" for phase, count in self.phases.items() if count]
        counts = f"{self.num_graded}/{self.num_planned} graded{share}"
        scores = f"reward {self.reward} · success {self.success} · {errors}"
        return " · ".join([*([self.state] if self.state else []), counts, scores, *phases])


ShowEval = Callable[[EvalProgress], None]


@contextmanager
def eval_view(console: "Console | None" = None) -> Iterator[ShowEval]:
    """What to call with each progress; the last one stays."""
    console = human() if console is None else console
    if redraws(console):
        with live(console) as frame:
            yield lambda progress: frame.update(frame_of(progress, console.width, console.height))
        return
    lines = BoundedLines(console)
    try:
        yield lambda progress: lines.show(str(progress))
    finally:
        lines.close()


def frame_of(progress: EvalProgress, width: int, height: int) -> "RenderableType":
    """A bar, a row of counts, and the marks where the terminal is large enough."""
    from rich.console import Group

    marks = list(_marks(progress.attempts, width, height - _OTHER_ROWS))
    legend = [row(LEGEND, "dim")] if marks else []
    return Group(bar(progress.num_graded, progress.num_planned, width), row(str(progress)), *marks, *legend)


def _marks(attempts: Mapping[str, str], width: int, rows: int) -> Iterator["Text"]:
    """A row for each task; where they are too many, one after the other without their names; else nothing."""
    most = max(map(len, attempts.values()), default=0)
    slugs = min(_SLUG_COLUMNS, max((len(slug) for slug in attempts), default=0))
    if len(attempts) <= rows and most > 1 and slugs + 2 + most <= width:
        for slug, marks in attempts.items():
            yield _painted(f"{one_line(slug, slugs):<{slugs}}  ", marks)
        return
    packed = (" " if most > 1 else "").join(attempts.values())
    lines = [packed[start : start + width] for start in range(0, len(packed), width)]
    if len(lines) <= rows:
        yield from (_painted("", line) for line in lines)


def _painted(name: str, marks: str) -> "Text":
    from rich.text import Text

    text = Text(name, no_wrap=True)
    for mark in marks:
        text.append(mark, style=_STYLES.get(mark, ""))
    return text


def marks_of(slugs: Sequence[str], group: int, ended: Mapping[tuple[str, int], str]) -> dict[str, str]:
    """A mark for each attempt, by task. ended: the mark of each that is over, by task and attempt."""
    if len(slugs) * group > MAX_MARKS:
        return {}
    return {slug: "".join(ended.get((slug, n), WAITING) for n in range(group)) for slug in slugs}


def mark_of(run: "Run") -> str:
    """Of an episode that is over."""
    return MISSING if run.is_error else SUCCEEDED if run.success else WRONG


@dataclass(slots=True)
class EvalCounts:
    """Sums over the episodes that are over."""

    num_graded: int = 0
    num_errors: int = 0
    num_left_out: int = 0
    num_successes: int = 0
    reward_sum: float = 0.0

    def add(self, run: "Run") -> None:
        """One more; of a task without a solution that it is over, alone."""
        if not run.counts:
            self.num_left_out += 1
            return
        if run.is_error:
            self.num_errors += 1
            return
        self.num_graded += 1
        self.num_successes += run.success
        self.reward_sum += run.reward

    def progress(self, num_planned: int, attempts: Mapping[str, str]) -> EvalProgress:
        """Of so many episodes in all. An error is no success."""
        graded, over = self.num_graded, self.num_graded + self.num_errors
        return EvalProgress(
            num_planned=num_planned,
            num_graded=graded + self.num_left_out,
            num_errors=self.num_errors,
            reward=f"{self.reward_sum / graded:.3f}" if graded else "–",
            success=f"{self.num_successes / over:.1%}" if graded else "–",
            attempts=attempts,
        )
