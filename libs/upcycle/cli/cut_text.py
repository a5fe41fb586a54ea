"""The report of beginnings that were graded, as plain text and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from upcycle.cli.report_text import one_line
from upcycle.regrading.cut_report import TOLERATED, CutReport
from upcycle.regrading.report import RegradedRun
from upcycle.wording import amount

MAX_ROWS: Final = 10


def cut_lines(done: RegradedRun, report: CutReport) -> Iterator[str]:
    """Everything that is printed."""
    successes, by = amount(report.num_cut, "success", "successes"), one_line(done.by, 200)
    yield f"{one_line(done.run_id)}: the first {report.share:.0%} of {successes} graded by {by}"
    if report.num_cut:
        passed = f"{len(report.passed)} of {report.num_cut} succeed already, {report.rate:.1%}"
        yield f"{passed}; {TOLERATED:.0%} are tolerated"
    else:
        yield "nothing is known: no success of it could be graded at its beginning"
    if report.is_alarm:
        yield (
            "alarm: success is reached before the evidence is read: the grader asks for less than it "
            "should, or something gives the answer away"
        )
    for one in report.passed[:MAX_ROWS]:
        name = one_line(one.name)
        yield f"  {name}  {one_line(one.task.slug)}: upcycle trajectories show {name}"
    if more := report.passed[MAX_ROWS:]:
        yield f"  and {len(more)} more"
    if report.num_others:
        yield f"{report.num_others} left out: no success, guided, or ended by a failure of the policy"
    if report.num_unclear:
        unclear = amount(report.num_unclear, "trajectory", "trajectories")
        yield f"{unclear} could not be graded: not reproducible, or the environment failed"
    yield "a report: the run's grades, ledger and evidence are as they were"


def cut_fields(done: RegradedRun, report: CutReport) -> dict[str, Any]:
    """Of the JSON line."""
    from upcycle.cli.regrade_text import regraded_row

    fields = {name: value for name, value in asdict(report).items() if name != "passed"}
    passed = [regraded_row(one) for one in report.passed]
    named = {"run_id": done.run_id, "source": done.by, "tolerated": TOLERATED}
    return {**named, **fields, "rate": report.rate, "is_alarm": report.is_alarm, "passed": passed}
