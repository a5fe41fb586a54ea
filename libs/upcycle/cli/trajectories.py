"""`upcycle trajectories …`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TextIO

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json, result_console
from upcycle.cli.plain_output import unfiltered
from upcycle.cli.trajectory_choice import ALL, TrajectoryChoice, UnclearFilter
from upcycle.local_runs import is_local_run
from upcycle.platform import Platform, PlatformNotFound
from upcycle.whole_files import written_whole
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectorySummary

MAX_LISTED: Final = 1000


async def list_trajectories(
    *, which: TrajectoryChoice = ALL, limit: int = 20, as_json: JsonFlag = False
) -> int:
    """Newest trajectories.

    Where no platform is found, those of evaluations that were played in this folder.

    - what went wrong in the newest run: `upcycle trajectories list --run last --max-reward 0.2`
    - one task, over all runs: `upcycle trajectories list --task SLUG --limit 100`

    :param limit: at most so many, up to 1000.
    :param as_json: one JSON line each.
    """
    from upcycle.api.trajectory.v1.service_pb2 import ListTrajectoriesRequest

    which.check()
    if odd := which.odd_rewards():
        human().print(odd, style="yellow", markup=False, soft_wrap=True)
    if not 0 < limit <= MAX_LISTED:
        raise UnclearFilter(f"--limit is {limit}", f"give 1 to {MAX_LISTED}")
    try:
        connected = Platform()
    except PlatformNotFound:
        from upcycle.cli.local_trajectories import can_list, list_local

        if not can_list(which):
            raise
        list_local(which, limit, as_json=as_json)
        return Exit.OK
    async with connected as platform:
        request = ListTrajectoriesRequest(filter=await which.to_wire(platform), page_size=limit)
        listed = (await platform.trajectories.ListTrajectories(request, timeout=10)).trajectories
        if not listed:
            human().print(await which.why_none(platform))
    if as_json:
        for one in listed:
            print_json("trajectory", one)
        return Exit.OK
    _print_table(listed)
    return Exit.OK


def _print_table(listed: "Sequence[TrajectorySummary]") -> None:
    from rich.table import Table

    from upcycle.cli.trajectory_view import ledger_words

    tasksets = {one.episode.taskset for one in listed}
    named = len(tasksets) > 1  # of one alone it is no news
    what = ("trajectory", "taskset", "task") if named else ("trajectory", "task")
    labelled = any(one.episode.labels for one in listed)
    columns = (
        *what,
        *(("labels",) if labelled else ()),
        "turns",
        "tokens",
        "version",
        "reward",
        "success",
        "ledger",
    )
    table = Table(*columns, box=None)
    for one in listed:
        reward = f"{one.reward:.3f}" if one.graded else "–"
        version = f"v{one.sampled_by.oldest}" if one.sampled_by.oldest >= 0 else "–"
        counts = (str(one.num_turns), str(one.num_sampled_tokens), version)
        success = "yes" if one.success else "no"
        of = (one.episode.taskset or "–",) if named else ()
        labels = (" ".join(one.episode.labels) or "–",) if labelled else ()
        what = (one.episode.trajectory_id, *of, one.episode.task_slug, *labels)
        table.add_row(*what, *counts, reward, success, ledger_words(one.ledger))
    result_console().print(table)


async def show(
    trajectory: str, *, file: Path | None = None, tokens: bool = True, as_json: JsonFlag = False
) -> int:
    """One trajectory: turns, tool calls with results, reward tree, tokens coloured by log-probability.

    An episode of an evaluation in one process (`here-…`) is read from its trajectories.jsonl, without a
    platform; so is the `last` one, where no platform is found.

    :param trajectory: trajectory or episode id, or `last`.
    :param file: trajectories.jsonl that holds it.
    :param tokens: show the sampled tokens with their log-probabilities.
    :param as_json: the whole record as one JSON line.
    """
    from upcycle.api.trajectory.v1.service_pb2 import GetTrajectoryRequest
    from upcycle.cli.trajectory_view import render
    from upcycle.reporting.trajectory_files import newest_file

    if file is not None or is_local_run(trajectory):
        _show_line(file, trajectory, as_json)
        return Exit.OK
    try:
        connected = Platform()
    except PlatformNotFound:
        if trajectory != "last" or (played := newest_file()) is None:
            raise
        _show_line(played, trajectory, as_json)
        return Exit.OK
    async with connected as platform:
        trajectory_id = await resolve_trajectory(platform, trajectory)
        request = GetTrajectoryRequest(trajectory_id=trajectory_id)
        record = await platform.trajectories.GetTrajectory(request, timeout=10)
        failure = "" if as_json else await _failure_of(platform, record.summary)
    if as_json:
        print_json("trajectory", record)
    else:
        result_console().print(render(record.summary, record.body, with_tokens=tokens, failure=failure))
    return Exit.OK


def _show_line(file: Path | None, episode: str, as_json: bool) -> None:
    """Of a trajectories file; by default that of the episode's evaluation."""
    from upcycle.cli.line_view import episode_in, render_line
    from upcycle.reporting.trajectory_files import file_of

    path = file_of(str(file or episode.partition("/")[0]))
    if path is None:
        raise UnclearFilter(f"--file {file} is no trajectories file", "give a .jsonl")
    shown, line = episode_in(path, episode)
    if as_json:
        print_json("trajectory", line)
    else:
        result_console().print(render_line(shown, line))


async def _failure_of(platform: Platform, summary: "TrajectorySummary") -> str:
    """Why an episode has no reward, as its planner knows it; "" where it has one, or the run is removed."""
    from upcycle.api.trajectory.v1.trajectory_pb2 import LEDGER_STATE_FAILED
    from upcycle.errors import UpcycleError
    from upcycle.evaluation import read_results

    if summary.ledger.state != LEDGER_STATE_FAILED:
        return ""
    try:
        results = (await read_results(platform, summary.episode.run_id)).results
    except UpcycleError:
        return ""
    return next((row.failure_detail for row in results if row.episode_id == summary.episode.episode_id), "")


async def resolve_trajectory(platform: Platform, trajectory: str) -> str:
    """The trajectory that a person means; `last` is the newest one that is not of a run of the platform."""
    from upcycle.cli.runs import is_run_of_platform, resolve_run
    from upcycle.errors import UnknownName

    if trajectory != "last":
        return trajectory
    newest = await _newest(platform, "")
    if newest is None:
        raise UnknownName("no trajectory is stored yet", "run `upcycle eval` first")
    run_id = newest.episode.run_id
    if run_id and await is_run_of_platform(platform, run_id):
        meant = await resolve_run(platform, "last")
        newest = await _newest(platform, meant) or newest
    return str(newest.episode.trajectory_id)


async def _newest(platform: Platform, run_id: str) -> "TrajectorySummary | None":
    """run_id: "" for that of any run."""
    from upcycle.api.trajectory.v1.service_pb2 import ListTrajectoriesRequest, TrajectoryFilter

    request = ListTrajectoriesRequest(filter=TrajectoryFilter(run_id=run_id), page_size=1)
    listed = (await platform.trajectories.ListTrajectories(request, timeout=10)).trajectories
    return listed[0] if listed else None


async def export(
    *,
    which: TrajectoryChoice = ALL,
    form: Literal["triples", "records", "trajectories"] = "triples",
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
) -> int:
    """Write trajectories as JSON lines.

    :param form: `triples` of prompt, completion and reward; whole `records`; or `trajectories`, the lines of
        `upcycle eval --trajectories`, which `upcycle view` and `upcycle train --sft` read.
    :param output: file to write, in the place of one that is there; by default standard output.
    """
    which.check()
    if output is None:
        return await _export(which, form, unfiltered(sys.stdout))
    if not output.parent.is_dir():
        raise UnclearFilter(f"--output {output}: there is no folder {output.parent}", "make it first")
    with written_whole(output) as draft, draft.open("w", encoding="utf-8") as lines:
        return await _export(which, form, lines)


async def _export(which: TrajectoryChoice, form: str, to: TextIO) -> int:
    from upcycle.api.trajectory.v1 import service_pb2

    asked = service_pb2.EXPORT_FORMAT_TRIPLES if form == "triples" else service_pb2.EXPORT_FORMAT_RECORDS
    lines = removed = 0
    async with Platform() as platform:
        wanted = await which.to_wire(platform)
        request = service_pb2.ExportTrajectoriesRequest(filter=wanted, format=asked)
        async for part in platform.trajectories.ExportTrajectories(request, timeout=3600):
            to.write(_as_trajectories(part.jsonl) if form == "trajectories" else part.jsonl)
            lines += part.jsonl.count("\n")
            removed += part.removed
        if not lines and not removed:
            human().print(await which.why_none(platform))
    also = f"; retention removed {removed} more" if removed else ""
    human().print(amount(lines, "trajectory", "trajectories") + also)
    return Exit.OK


def _as_trajectories(records: str) -> str:
    """Lines of records as lines of a trajectories file."""
    from upcycle.trajectory_lines.writing import line_of_record

    lines = (line_of_record(json.loads(line)) for line in records.split("\n") if line)
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
