"""The report of an evaluation as plain text: no colours, nothing of an agent's text as control characters."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from upcycle.cli.terminal_text import terminal_text
from upcycle.reporting.episodes import EvaluatedRun
from upcycle.reporting.report import EvaluationReport, Score
from upcycle.reporting.words import number, percent
from upcycle.wording import amount

MAX_ROWS: Final = 12
MAX_CLUSTERS: Final = 5
_BARS: Final = "▁▂▃▄▅▆▇█"


def report_lines(report: EvaluationReport, run: EvaluatedRun, file: Path | None = None) -> Iterator[str]:
    """Everything below the first line of the result. file: that holds the episodes, where it is none that
    `upcycle trajectories show` finds by itself."""
    overall = report.overall
    if overall.num_graded:
        yield f"95 % intervals, clustered by task: {_clustered(overall)}"
    yield _work(report, run)
    if overall.num_graded:
        yield from _attempts(report)
        yield from _rewards(report, run)
        yield from _families(report)
        yield from _subscores(report)
        yield from _failures(report, run)
        yield from _worst(report, file)
        yield from _shown_answers(report)
    if run.notice:
        yield one_line(run.notice, 200)


def one_line(text: str, max_chars: int = 80) -> str:
    """For a cell: one line, no control characters, cut."""
    flat = " ".join(terminal_text(text).split())
    return flat if len(flat) <= max_chars else f"{flat[: max_chars - 1]}…"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns two spaces apart, each as wide as its widest cell; the last is not padded."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _clustered(overall: Score) -> str:
    if overall.num_tasks < 2:
        return "none, one task says nothing of others"
    reward = number(overall.reward)
    alike = overall.reward is not None and overall.reward.interval is None
    return f"success {percent(overall.success)}, reward {reward}" + (
        " on every task: no interval" if alike else ""
    )


def _work(report: EvaluationReport, run: EvaluatedRun) -> str:
    tokens = f"{report.mean_tokens:.0f}" if report.mean_tokens is not None else "–"
    took = f"{run.duration_s:.0f} s from submit to end"
    in_all = f" ({report.num_tokens:,} in all)" if report.num_tokens else ""
    return f"per episode {report.mean_turns:.1f} turns, {tokens} tokens{in_all}; {took}"


def _attempts(report: EvaluationReport) -> Iterator[str]:
    if report.attempts:
        rows = [
            ["k", *(str(one.k) for one in report.attempts)],
            ["pass@k, one of k succeeds", *(f"{one.pass_at:.1%}" for one in report.attempts)],
            ["pass^k, all k succeed", *(f"{one.pass_hat:.1%}" for one in report.attempts)],
        ]
        yield from table(rows)


def _rewards(report: EvaluationReport, run: EvaluatedRun) -> Iterator[str]:
    if report.bins_refused:
        yield f"no histogram: {one_line(report.bins_refused, 160)}"
    else:
        highest = max(report.bins)
        bars = "".join(_BARS[-(-count * (len(_BARS) - 1) // highest)] for count in report.bins)
        filled = [f"{at / 10:g}–{(at + 1) / 10:g}: {count}" for at, count in enumerate(report.bins) if count]
        yield f"rewards 0 {bars} 1  ({', '.join(filled)})"
    if run.group < 2:
        yield "groups of one have no spread to train on: --group 8 shows what training would get"
        return
    some, of = report.num_groups_with_spread, report.num_groups
    share = f" ({some / of:.0%})" if of else ""
    yield f"{some} of {of} whole groups{share} have spread at --group {run.group}: only those would train"


def _families(report: EvaluationReport) -> Iterator[str]:
    if len(report.families) < 2:
        return
    rows = [["family", "tasks", "success", "reward"]]
    rows += [
        [one_line(one.name, 40), str(one.num_tasks), percent(one.success), number(one.reward)]
        for one in report.families[:MAX_ROWS]
    ]
    yield from table(rows)
    yield from _more(len(report.families) - MAX_ROWS, "families")


def _subscores(report: EvaluationReport) -> Iterator[str]:
    if not report.subscores:
        return
    found = list(report.subscores.items())
    rows = [["subscore", "mean"], *([one_line(name, 40), f"{mean:.3f}"] for name, mean in found[:MAX_ROWS])]
    yield from table(rows)
    yield from _more(len(found) - MAX_ROWS, "subscores")


def _failures(report: EvaluationReport, run: EvaluatedRun) -> Iterator[str]:
    if not report.failures:
        return
    unread = f", {run.num_unread} of them not read" if run.num_unread else ""
    yield f"without success: {sum(one.count for one in report.failures)} graded episodes{unread}"
    rows = [
        [
            f"  {one.count}×",
            one_line(one.family, 30),
            one_line(one.first_tool_error) or "no tool error",
            one_line(one.ended, 60) or "not read",
            one.example,
        ]
        for one in report.failures[:MAX_CLUSTERS]
    ]
    yield from table([["", "family", "first tool error", "end", "example"], *rows])
    yield from _more(len(report.failures) - MAX_CLUSTERS, "kinds")


def _worst(report: EvaluationReport, file: Path | None) -> Iterator[str]:
    of_file = f" --file {shlex.quote(one_line(str(file), 200))}" if file is not None else ""
    if report.worst:
        yield "worst:"
        yield from table(
            [
                [
                    f"  {one.reward:.3f}",
                    one_line(one.task_slug, 60),
                    f"upcycle trajectories show {shlex.quote(one.show_name)}{of_file}",
                ]
                for one in report.worst
            ]
        )


def _shown_answers(report: EvaluationReport) -> Iterator[str]:
    if not report.shown_answers:
        return
    num_tasks = len({one.task for one in report.shown_answers})
    of_tasks = amount(num_tasks, "task")
    yield f"a tool's result held the answer word for word: {of_tasks} of those that were read"
    yield from table(
        [
            [f"  {one.count}×", one_line(one.task, 60), one_line(one.tool, 40)]
            for one in report.shown_answers[:MAX_CLUSTERS]
        ]
    )
    yield from _more(len(report.shown_answers) - MAX_CLUSTERS, "of them")


def _more(count: int, what: str) -> Iterator[str]:
    if count > 0:
        yield f"  and {count:,} more {what}: --json has all of them"
