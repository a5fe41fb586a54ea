"""`upcycle trajectories list` where no platform is found: episodes of evaluations that ran here."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from upcycle.cli.output import human, print_json, result_console
from upcycle.cli.trajectory_choice import TrajectoryChoice
from upcycle.local_runs import is_local_run
from upcycle.reporting.episodes import EpisodeRow
from upcycle.reporting.trajectory_files import TrajectoryLines, file_of, newest_files, read_file
from upcycle.trajectory_lines.reading import NoTrajectories


@dataclass(frozen=True, slots=True)
class LocalEpisode:
    """agent: who played its evaluation."""

    run_id: str
    agent: str
    row: EpisodeRow


def can_list(which: TrajectoryChoice) -> bool:
    """Whether files have what is asked for: no version, no label of a session and no ledger is in them, and
    no run of a platform."""
    is_here = which.run in ("", "last") or is_local_run(which.run)
    of_platform = which.version or which.label
    return is_here and not of_platform and which.state in (None, "client_graded") and bool(_files(which))


def list_local(which: TrajectoryChoice, limit: int, *, as_json: bool) -> None:
    """The chosen ones, those of the newest evaluation first. Raises NoTrajectories for one that is none."""
    found = list(islice(_chosen(which), limit))
    human().print("no platform was found: these were played here", style="dim", markup=False)
    if not found:
        human().print("no trajectory is like that")
    if as_json:
        for one in found:
            print_json("trajectory", {"run_id": one.run_id, "agent": one.agent, **asdict(one.row)})
    else:
        _print_table(found)


def _files(which: TrajectoryChoice) -> list[Path]:
    if is_local_run(which.run):
        return [path for path in [file_of(which.run)] if path is not None]
    files = newest_files()
    return files[:1] if which.run else files


def _chosen(which: TrajectoryChoice) -> Iterator[LocalEpisode]:
    for path in _files(which):
        try:
            run = read_file(TrajectoryLines(path)).run
        except NoTrajectories as error:
            human().print(f"left out: {error}", style="yellow", markup=False, soft_wrap=True)
            continue
        for row in run.episodes:
            if which.model in ("", run.model) and _fits(which, row):
                yield LocalEpisode(run.run_id, run.model, row)


def _fits(which: TrajectoryChoice, row: EpisodeRow) -> bool:
    is_named = which.task in ("", row.task_slug) and which.family in ("", row.family)
    failed = which.failure in (None, row.failure, row.policy_failure)
    least, most = which.min_reward, which.max_reward
    if row.reward is None:
        return is_named and failed and least is None and most is None
    above, below = least is None or row.reward >= least, most is None or row.reward <= most
    return is_named and failed and above and below


def _print_table(found: list[LocalEpisode]) -> None:
    from rich.table import Table

    table = Table("trajectory", "agent", "turns", "tokens", "reward", "success", box=None)
    for one in found:
        row = one.row
        reward = "–" if row.reward is None else f"{row.reward:.3f}"
        tokens = "–" if row.num_tokens is None else str(row.num_tokens)
        table.add_row(
            row.episode_id, one.agent, str(row.num_turns), tokens, reward, "yes" if row.success else "no"
        )
    result_console().print(table)
