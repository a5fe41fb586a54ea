"""`upcycle compare`."""

from collections.abc import Iterator

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, print_json
from upcycle.cli.report_text import one_line, table
from upcycle.platform import Platform
from upcycle.reporting.comparison import Comparison, PairedScore, compare
from upcycle.reporting.episodes import EvaluatedRun
from upcycle.reporting.files import evaluation_in
from upcycle.reporting.reading import read_evaluation
from upcycle.reporting.trajectory_files import file_of
from upcycle.reporting.verdicts import verdict_of
from upcycle.reporting.words import number
from upcycle.statistics.intervals import Estimate
from upcycle.wording import amount


async def compare_runs(a: str, b: str, *, as_json: JsonFlag = False) -> int:
    """B minus A on the same tasks: paired 95 % intervals clustered by task, tasks won, lost and tied.

    The verdict says what success and what reward show, and which of them decides: success, where its interval
    leaves out 0. Refuses evaluations of other tasks, and evaluations that other code judged.

    :param a: the earlier one: id of an evaluation, `last`, a file that `upcycle eval … --json` wrote, or the
        trajectories.jsonl of an evaluation in one process.
    :param b: the later one, likewise.
    :param as_json: one JSON line.
    """
    first, second = await _found((a, b))
    done = compare(first, second)
    if as_json:
        verdict = verdict_of(done.overall).to_json()
        print_json(
            "comparison", {"a": first.run_id, "b": second.run_id, **done.to_json(), "verdict": verdict}
        )
        return Exit.OK
    for line in comparison_lines(first, second, done):
        print(line)
    return Exit.OK


async def _found(names: tuple[str, str]) -> list[EvaluatedRun]:
    """Connects to a platform only where one of them is no file."""
    paths = [file_of(name) for name in names]
    in_files = [evaluation_in(path) if path is not None else None for path in paths]
    runs = [name for name, path in zip(names, paths, strict=True) if path is None]
    if not runs:
        return [one for one in in_files if one is not None]
    from upcycle.cli.runs import as_run_id

    with as_run_id(runs[0]):
        async with Platform() as platform:
            return [one or await _read(platform, name) for name, one in zip(names, in_files, strict=True)]


async def _read(platform: Platform, name: str) -> EvaluatedRun:
    from upcycle.cli.runs import resolve_run

    return await read_evaluation(platform, await resolve_run(platform, name))


def comparison_lines(a: EvaluatedRun, b: EvaluatedRun, done: Comparison) -> Iterator[str]:
    """The comparison as plain text."""
    overall = done.overall
    for name, run, success in (("A", a, overall.a_success), ("B", b, overall.b_success)):
        versions = ", ".join(f"v{version}" for version in run.versions)
        what = f"{one_line(run.model)} {versions}".strip()
        where = f"{one_line(run.taskset)}, group {run.group}"
        yield f"{name}  {run.run_id}: {what} on {where}, success {success:.1%}"
        if run.notice:
            yield f"   {one_line(run.notice, 200)}"
    yield f"B − A over {amount(overall.num_tasks, 'task')}, 95 % intervals clustered by task:"
    yield f"success {points(overall.success)}, exact p {done.p_value:.2g}"
    yield f"reward {number(overall.reward, '+')}"
    yield from verdict_of(overall).lines()
    rows = [["family", "tasks", "success", "reward", "won", "lost", "tied"]]
    scores = (*done.families, overall) if len(done.families) > 1 else (overall,)
    rows += [_row(one) for one in scores]
    yield from table(rows)
    if done.num_ungraded:
        tasks = amount(done.num_ungraded, "task has", "tasks have")
        yield f"{tasks} no graded episode on one side, where success alone counts"
    if not a.source_digest:
        yield "the source that judged them is not known: that it was the same is not checked"
    if done.differing:
        yield f"they were sampled differently (A, B): {one_line('; '.join(done.differing), 200)}"
    if overall.success.interval is None and overall.num_tasks > 1:
        yield "an interval is missing where every task differs by the same: there is no spread"


def points(estimate: Estimate) -> str:
    """`+12.5 points [+3.0, +22.0]`."""
    ends = estimate.interval
    shown = f" [{100 * ends.low:+.1f}, {100 * ends.high:+.1f}]" if ends is not None else ""
    return f"{100 * estimate.value:+.1f} points{shown}"


def _row(one: PairedScore) -> list[str]:
    counts = [str(count) for count in (one.won, one.lost, one.tied)]
    return [one_line(one.name, 40), str(one.num_tasks), points(one.success), number(one.reward, "+"), *counts]
