"""Flags of `upcycle eval` that say what becomes of the result, and the bars that a result may miss."""

from dataclasses import dataclass
from typing import Final

from cyclopts import Parameter

from upcycle.cli.output import JsonFlag
from upcycle.errors import UpcycleError
from upcycle.reporting.best_of import BestOfReport
from upcycle.results import MIN_COVERAGE, Coverage
from upcycle.wording import amount


class UnclearEvaluation(UpcycleError, ValueError):
    """The options do not say what to evaluate."""

    kind = "unclear_evaluation"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What to do with the result."""

    min_success: float | None = None
    """exit with 3 when a smaller share of all episodes, 0 to 1, succeeded; a missing one has not. With
    --best-of: of the chosen ones."""
    min_coverage: float = MIN_COVERAGE
    """exit with 3 when a smaller share of the episodes, 0 to 1, was graded."""
    timeout_s: float = 3600.0
    """give up watching after so many seconds."""
    detach: bool = False
    """print the run id and leave."""
    dry_run: bool = False
    """load and validate the tasks, submit nothing."""
    as_json: JsonFlag = False
    """JSON lines: `launch`, with --trainable `drawn_by`, then `done` with `coverage`, `report` and
    `evaluation`: the episodes, which `upcycle compare` reads; with --best-of `best_of`, too."""

    def check(self) -> None:
        """Raises UnclearEvaluation for a bar that is no share."""
        for flag, share in (("--min-success", self.min_success), ("--min-coverage", self.min_coverage)):
            if share is not None and not 0 <= share <= 1:
                raise UnclearEvaluation(f"{flag} is {share:g}", "it is a share from 0 to 1, such as 0.95")


@Parameter(name="*", group="A run that was submitted")
@dataclass(frozen=True, slots=True, kw_only=True)
class FollowFlags:
    """Instead of TASKS MODEL; see --resume."""

    attach: str = ""
    """follow this evaluation, or `last`, and report at its end: its command was ended, or had --detach."""
    resume: str = ""
    """the same of an evaluation that is paused: it goes on. Of one that an agent of others played
    (here-…), beside TASKS and the agent: plays the episodes that have no reward yet."""

    @property
    def run(self) -> str:
        """The run; "" where a new one is asked for. Raises UnclearEvaluation for two."""
        if self.attach and self.resume:
            raise UnclearEvaluation("--attach and --resume both name a run", "give one of them")
        return self.attach or self.resume


PLAIN: Final = Report()
NO_FOLLOW: Final = FollowFlags()


def require_command(follow: FollowFlags, *, is_whole: bool) -> None:
    """Of an evaluation that is played in the process of its command. is_whole: tasks and agent were given.
    Raises UnclearEvaluation."""
    run_id = f"{follow.run:.80}"
    if follow.attach:
        raise UnclearEvaluation(
            f"--attach {run_id}: it was played by the command that began it, and ended with that",
            f"`upcycle view {run_id}` shows what it played; that command with --resume {run_id} plays what "
            "is missing",
        )
    if not is_whole:
        raise UnclearEvaluation(
            f"--resume {run_id} plays in this process: TASKS and the agent missing",
            f"give the command that began it: upcycle eval TASKS AGENT --resume {run_id}",
        )


def unmet_bars(coverage: Coverage, report: Report, chosen: BestOfReport | None = None) -> list[str]:
    """The bars that were not reached, in words. chosen: whose success counts, where attempts were chosen."""
    unmet = []
    if coverage.share < report.min_coverage:
        unmet.append(f"{coverage}: {coverage.share:.1%} is below --min-coverage {report.min_coverage:.1%}")
    rate, of = coverage.success_rate, f"all {amount(coverage.num_planned, 'episode')}"
    if chosen is not None:
        rate, of = chosen.chosen.value, f"the {amount(chosen.num_tasks, 'chosen attempt')}"
    if report.min_success is not None and rate < report.min_success:
        unmet.append(f"success {rate:.1%} of {of} is below --min-success {report.min_success:.1%}")
    return unmet
