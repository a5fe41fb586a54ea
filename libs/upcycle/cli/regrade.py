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


async def regrade_run(
    run: str,
    /,
    *,
    source: Path | None = None,
    task_ids: TaskIds = (),
    limit: int | None = None,
    ignore: Ignored = (),
    max_concurrent: int = 8,
    cell: Cell = True,
    output: Output = "",
    as_json: JsonFlag = False,
) -> int:
    """Grade the trajectories of RUN again, and compare: a report, which changes no grade, ledger or evidence.

    Each graded trajectory is played again in a process of its own, here: the same arguments, the same tool
    calls, the same answer. Where the environment says something else than was recorded, the trajectory is
    named as not reproducible and has no new grade. Exit status 1: some have none.

    - by the code that judged it: `upcycle trajectories regrade run-5cc529775cfd`
    - what it would have earned by an edited grader: `upcycle trajectories regrade last --source env.py`
    - tools that say how long they took: `upcycle trajectories regrade last --ignore "in [0-9.]+s"`

    :param run: id of a run, `last`, or the trajectories.jsonl of an evaluation in one process, or its id.
    :param source: Python file that declares the environment; by default the source that the run packed.
    :param task_ids: only trajectories of these tasks, by slug; several with commas or spaces between them.
    :param limit: at most so many trajectories, spread evenly over the tasks.
    :param ignore: regular expression of what prompts and results may differ in; may be repeated.
    :param max_concurrent: so many at once, up to 256.
    :param cell: each process reads its source and the system alone, and writes a folder of its own, where the
        kernel can hold that; with --no-cell it may touch what you may, as in `upcycle play`.
    :param output: also write each trajectory with both grades to this file, as JSON lines.
    :param as_json: one JSON line.
    """
    _check(limit, max_concurrent, output)
    slugs = [slug for one in task_ids for slug in one.split(",") if slug]
    with tempfile.TemporaryDirectory(prefix="upcycle-regrade-") as folder:
        asked = _Asked(run, source, slugs, limit, max_concurrent, Path(folder), cell, _pattern(ignore))
        done = await _regraded(asked)
    return _reported(done, output, as_json)


def _reported(done: "RegradedRun", output: str, as_json: bool) -> int:
    """The report, and the file where one was asked for; the exit status."""
    from upcycle.cli.regrade_text import regrade_fields, regrade_lines
    from upcycle.regrading.report import report_of

    report = report_of(done.trajectories)
    if output:
        _write(Path(output), done)
    if as_json:
        print_json("regrade", regrade_fields(done, report))
    else:
        for line in regrade_lines(done, report):
            print(line)
    return Exit.OK if report.is_whole else Exit.FAILED


def _check(limit: int | None, max_concurrent: int, output: str) -> None:
    from upcycle.regrading.errors import RegradeRefused

    if limit is not None and limit < 1:
        raise RegradeRefused(f"--limit is {limit}", "give at least 1")
    if not 1 <= max_concurrent <= _MOST_CONCURRENT:
        raise RegradeRefused(f"--max-concurrent is {max_concurrent}", f"give 1 to {_MOST_CONCURRENT}")
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
    """source: an edited file; None: the run's own source. folder: where that is laid, and where episodes have
    theirs."""

    run: str
    source: Path | None
    slugs: Sequence[str]
    limit: int | None
    max_concurrent: int
    folder: Path
    in_cells: bool
    ignored: re.Pattern[str] | None


async def _regraded(asked: _Asked) -> "RegradedRun":
    from upcycle.regrading.reading import graded_in_file, graded_on_platform
    from upcycle.regrading.sources import own_files, own_sources, read_packed
    from upcycle.reporting.trajectory_files import file_of

    path = file_of(asked.run)
    if path is not None:
        graded = graded_in_file(path).only(asked.slugs, asked.limit)
        return await _graded_again(asked, graded, None if asked.source else own_files(graded))
    async with Platform() as platform:

        async def read(digest: str) -> bytes:
            return await read_packed(platform, digest)

        found = await graded_on_platform(platform, await _run_id(platform, asked.run))
        graded = found.only(asked.slugs, asked.limit)
        sources = asked.folder / "sources"
        sources.mkdir()
        own = None if asked.source else await own_sources(graded, read, sources)
        return await _graded_again(asked, graded, own)


async def _graded_again(asked: _Asked, graded: "GradedRun", own: "Places | None") -> "RegradedRun":
    from upcycle.environment.source_files import source_digest
    from upcycle.regrading.grading import RegradeOptions, regrade
    from upcycle.regrading.report import RegradedRun
    from upcycle.regrading.sources import given_source

    is_own = own is not None
    places = own if own is not None else given_source(graded, asked.source or Path())
    by = ", ".join(dict.fromkeys(digest[:12] for _, digest in graded.environments))
    if asked.source is not None:
        by = f"{source_digest(asked.source)[:12]}, {asked.source}"
    cells = asked.folder / "episodes" if asked.in_cells else None
    if cells is not None:
        cells.mkdir()
    options = RegradeOptions(asked.max_concurrent, is_own_source=is_own, cells=cells, ignored=asked.ignored)
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
