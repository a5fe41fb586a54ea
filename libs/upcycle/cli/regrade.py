"""`upcycle trajectories regrade`."""

import json
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json
from upcycle.platform import Platform

if TYPE_CHECKING:
    from upcycle.regrading.chosen import GradedRun
    from upcycle.regrading.grading import Regraded
    from upcycle.regrading.report import RegradedRun
    from upcycle.regrading.sources import Places

Output = Annotated[str, Parameter(name=["--output", "-o"])]
Ignored = Annotated[tuple[str, ...], Parameter(negative="")]
Cell = Annotated[bool, Parameter(name="--cell")]
TaskIds = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")]
_MOST_CONCURRENT: Final = 256


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RegradeFlags:
    """Which trajectories are graded again, and how."""

    source: Path | None = None
    """Python file that declares the environment; by default the source that the run packed."""
    task_ids: TaskIds = ()
    """only trajectories of these tasks, by slug; several with commas or spaces between them."""
    limit: int | None = None
    """at most so many trajectories, spread evenly over the tasks."""
    ignore: Ignored = ()
    """regular expression of what prompts and results may differ in; may be repeated."""
    max_concurrent: int = 8
    """so many at once, up to 256."""
    cell: Cell = True
    """each process reads its source and the system alone, and writes a folder of its own, where the kernel
    can hold that; with --no-cell it may touch what you may, as in `upcycle play`."""
    cut: float = 0.0
    """play only the first such share of each success, 0 to 1, and grade that with what the agent had said
    last by then. Exit status 1: more beginnings succeed than are tolerated, or none could be graded."""

    @property
    def slugs(self) -> list[str]:
        return [slug for one in self.task_ids for slug in one.split(",") if slug]

    def check(self) -> None:
        """Raises RegradeRefused for a number out of its range."""
        from upcycle.regrading.errors import RegradeRefused

        if self.limit is not None and self.limit < 1:
            raise RegradeRefused(f"--limit is {self.limit}", "give at least 1")
        if not 1 <= self.max_concurrent <= _MOST_CONCURRENT:
            raise RegradeRefused(
                f"--max-concurrent is {self.max_concurrent}", f"give 1 to {_MOST_CONCURRENT}"
            )
        if not 0 <= self.cut < 1:
            raise RegradeRefused(
                f"--cut is {self.cut:g}", "give a share above 0 and below 1, such as 0.5; 0: no cut"
            )


_ALL: Final = RegradeFlags()


async def regrade_run(
    run: str, /, *, flags: RegradeFlags = _ALL, output: Output = "", as_json: JsonFlag = False
) -> int:
    """Grade the trajectories of RUN again, and compare: a report, which changes no grade, ledger or evidence.

    Each graded trajectory is played again in a process of its own, here: the same arguments, the same tool
    calls, the same answer. Where the environment says something else than was recorded, the trajectory is
    named as not reproducible and has no new grade. Exit status 1: some have none.

    - by the code that judged it: `upcycle trajectories regrade run-5cc529775cfd`
    - what it would have earned by an edited grader: `upcycle trajectories regrade last --source env.py`
    - whether success is reached before the evidence is read:
      `upcycle trajectories regrade last --cut 0.5 --limit 60`
    - tools that say how long they took: `upcycle trajectories regrade last --ignore "in [0-9.]+s"`

    :param run: id of a run, `last`, or the trajectories.jsonl of an evaluation in one process, or its id.
    :param output: also write each trajectory with both grades to this file, as JSON lines.
    :param as_json: one JSON line.
    """
    flags.check()
    _check_output(output)
    with tempfile.TemporaryDirectory(prefix="upcycle-regrade-") as folder:
        done = await _regraded(_Asked(run, flags, _pattern(flags.ignore), Path(folder)))
    if output:
        _write(Path(output), done)
    return _reported_cut(done, flags.cut, as_json) if flags.cut else _reported(done, as_json)


def _reported_cut(done: "RegradedRun", share: float, as_json: bool) -> int:
    """The report on beginnings; the exit status."""
    from upcycle.cli.cut_text import cut_fields, cut_lines
    from upcycle.regrading.cut_report import cut_report

    report = cut_report(done.trajectories, share)
    if as_json:
        print_json("regrade_cut", cut_fields(done, report))
    else:
        for line in cut_lines(done, report):
            print(line)
    return Exit.FAILED if report.is_alarm or not report.num_cut else Exit.OK


def _reported(done: "RegradedRun", as_json: bool) -> int:
    """The report; the exit status."""
    from upcycle.cli.regrade_text import regrade_fields, regrade_lines
    from upcycle.regrading.report import report_of

    report = report_of(done.trajectories)
    if as_json:
        print_json("regrade", regrade_fields(done, report))
    else:
        for line in regrade_lines(done, report):
            print(line)
    return Exit.OK if report.is_whole else Exit.FAILED


def _check_output(output: str) -> None:
    from upcycle.regrading.errors import RegradeRefused

    path = Path(output)
    if output and not path.parent.is_dir():
        raise RegradeRefused(f"there is no folder {path.parent}", "create it, or name another file with -o")
    if output and path.exists():
        raise RegradeRefused(f"-o {output} is there already", "name a new file")


def _pattern(ignore: Sequence[str]) -> re.Pattern[str] | None:
    from upcycle.regrading.errors import RegradeRefused

    try:
        return re.compile("|".join(f"(?:{one})" for one in ignore)) if ignore else None
    except re.error as error:
        raise RegradeRefused(
            f"--ignore {' --ignore '.join(map(repr, ignore))} is no regular expression: {error}",
            "a backslash before each sign that is meant as it stands",
        ) from error


@dataclass(frozen=True, slots=True)
class _Asked:
    """folder: where the run's own source is laid, and where episodes have theirs."""

    run: str
    flags: RegradeFlags
    ignored: re.Pattern[str] | None
    folder: Path


async def _regraded(asked: _Asked) -> "RegradedRun":
    from upcycle.regrading.reading import graded_in_file, graded_on_platform
    from upcycle.regrading.sources import own_files, own_sources, read_packed
    from upcycle.reporting.trajectory_files import file_of

    path, flags = file_of(asked.run), asked.flags
    if path is not None:
        graded = graded_in_file(path).only(flags.slugs, flags.limit)
        return await _graded_again(asked, graded, None if flags.source else own_files(graded))
    async with Platform() as platform:

        async def read(digest: str) -> bytes:
            return await read_packed(platform, digest)

        found = await graded_on_platform(platform, await _run_id(platform, asked.run))
        graded = found.only(flags.slugs, flags.limit)
        sources = asked.folder / "sources"
        sources.mkdir()
        own = None if flags.source else await own_sources(graded, read, sources)
        return await _graded_again(asked, graded, own)


async def _graded_again(asked: _Asked, graded: "GradedRun", own: "Places | None") -> "RegradedRun":
    from upcycle.environment.source_files import source_digest
    from upcycle.regrading.grading import RegradeOptions, regrade
    from upcycle.regrading.report import RegradedRun
    from upcycle.regrading.sources import given_source

    is_own, flags = own is not None, asked.flags
    places = own if own is not None else given_source(graded, flags.source or Path())
    by = ", ".join(dict.fromkeys(digest[:12] for _, digest in graded.environments))
    if flags.source is not None:
        by = f"{source_digest(flags.source)[:12]}, {flags.source}"
    cells = asked.folder / "episodes" if flags.cell else None
    if cells is not None:
        cells.mkdir()
    options = RegradeOptions(
        flags.max_concurrent, is_own_source=is_own, cells=cells, ignored=asked.ignored, cut=flags.cut
    )
    done = await regrade(graded.at(places), options, _progress(len(graded.trajectories)))
    return RegradedRun(graded.run_id, by, is_own, tuple(done), graded.num_ungraded, graded.notice)


async def _run_id(platform: Platform, run: str) -> str:
    from upcycle.cli.runs import check_run, resolve_run

    run_id = await resolve_run(platform, run)
    await check_run(platform, run_id)
    return run_id


def _progress(total: int) -> "Callable[[Regraded], None]":
    """A line now and then, so that a person sees that it goes on."""
    from upcycle.cli.live_view import PolledLines

    lines, ended = PolledLines(human(), begins_at_once=False), count(1)
    return lambda _: lines.show(f"{next(ended)} of {total} graded again")


def _write(path: Path, done: "RegradedRun") -> None:
    from upcycle.cli.regrade_text import regraded_row
    from upcycle.whole_files import written_whole

    with written_whole(path) as draft, draft.open("x", encoding="utf-8") as file:
        for one in done.trajectories:
            file.write(json.dumps(regraded_row(one)) + "\n")
