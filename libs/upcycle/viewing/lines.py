"""The trajectories of an evaluation in one process (`trajectories.jsonl`) as a page.

The file is read twice: every line becomes a row, then the chosen ones are read whole.
"""

from collections.abc import Iterator
from pathlib import Path

from upcycle.reporting.report import report_of
from upcycle.reporting.trajectory_files import TrajectoryFile, TrajectoryLines, read_file
from upcycle.run_pages.values import Header, RunPage, ShownEpisode
from upcycle.viewing.asked import Asked
from upcycle.viewing.line_episodes import shown_line


def page_of_lines(path: Path, asked: Asked) -> RunPage:
    """Raises NoTrajectories and TooManyEpisodes."""
    lines = TrajectoryLines(path)
    file = read_file(lines)
    run = file.run
    return RunPage(
        header=Header(
            run.run_id,
            "evaluation in one process",
            run.shortfall or ("complete" if run.num_planned else "as far as it is written"),
            tuple(_facts(path, file)),
            warnings=tuple(_warnings(path, file)),
        ),
        episodes=run.episodes,
        shown=tuple(_shown(lines, asked, file)),
        report=report_of(run),
        group=run.group,
        is_whole=not run.shortfall,
    )


def _facts(path: Path, file: TrajectoryFile) -> Iterator[tuple[str, str]]:
    run, usage = file.run, file.usage
    yield "agent", run.model
    yield "environment", file.environment
    if run.taskset != file.environment:
        yield "taskset", run.taskset
    if run.source_digest:
        yield "source that judged it", run.source_digest[:12]
    yield "file", path.name
    yield (
        "episodes",
        f"{len(run.episodes)} of {run.num_planned}" if run.num_planned else str(len(run.episodes)),
    )
    yield "tokens", f"{usage.prompt_tokens:,} read, {usage.completion_tokens:,} written"
    if usage.cost is not None:
        yield "cost", f"{usage.cost:.4g}"


def _warnings(path: Path, file: TrajectoryFile) -> Iterator[str]:
    run = file.run
    if run.shortfall:
        yield f"{run.shortfall}, or not over yet. All figures are of the episodes that ended first."
    if run.notice:
        yield run.notice
    if len(file.run_ids) > 1:
        yield f"{path.name} holds {len(file.run_ids)} runs: {', '.join(file.run_ids)}"


def _shown(lines: TrajectoryLines, asked: Asked, file: TrajectoryFile) -> Iterator[ShownEpisode]:
    """The chosen episodes in the order of the choice; their lines are read once more."""
    chosen = asked.chosen(file.run.episodes)
    wanted = {file.places[row.episode_id]: (row, why) for row, why in chosen}
    found = {}
    for number, line in lines.rows():
        if number in wanted:
            row, why = wanted[number]
            with lines.refusing(number):
                found[row.episode_id] = shown_line(row, why, line)
    for row, _ in chosen:
        if row.episode_id in found:
            yield found[row.episode_id]
