"""`upcycle view`."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.output import human
from upcycle.cli.report_text import one_line
from upcycle.reporting.trajectory_files import file_of
from upcycle.viewing.asked import DEFAULT_SHOWN, Asked
from upcycle.viewing.writing import STDOUT, check_place, write_page
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.run_pages.values import RunPage

Output = Annotated[str, Parameter(name=["--output", "-o"], allow_leading_hyphen=True)]
All = Annotated[bool, Parameter(name="--all")]


async def view(
    run: str, /, *, output: Output = "", limit: int = DEFAULT_SHOWN, all_: All = False, tokens: bool = False
) -> int:
    """Write a run as one HTML file that opens anywhere: report, curves, tasks × attempts, trajectories.

    The file loads nothing from anywhere, and can be read without its script. What episodes wrote stays text.

    - the newest run: `upcycle view last -o run.html`
    - an evaluation in one process, every episode: `upcycle view here-… --all`

    :param run: id of a run, `last`, or the trajectories.jsonl of an evaluation in one process, or its id.
    :param output: the file; by default RUN.html here; `-` is standard output. A file that exists is replaced.
    :param limit: so many trajectories are shown whole: the worst, the best, those without a reward, a sample.
    :param all_: show all of them, at most 2,000, in a page of at most 32 MiB.
    :param tokens: with the sampled tokens and their log-probabilities.
    """
    asked = Asked(None if all_ else limit, tokens)
    path = file_of(run)
    place = output or f"{path.stem if path is not None and Path(run).is_file() else Path(run).name}.html"
    check_place(place)
    page = await _page_of_file(path, asked) if path is not None else await _page_of_run(run, asked)
    _write(page, place)
    return Exit.OK


async def _page_of_file(path: Path, asked: Asked) -> "RunPage":
    from upcycle.viewing.lines import page_of_lines

    return await asyncio.to_thread(page_of_lines, path, asked)


async def _page_of_run(run: str, asked: Asked) -> "RunPage":
    from upcycle.cli.runs import as_run_id, resolve_run
    from upcycle.platform import Platform
    from upcycle.viewing.platform_run import read_page

    with as_run_id(run):
        async with Platform() as platform:
            return await read_page(platform, await resolve_run(platform, run), asked)


def _write(page: "RunPage", place: str) -> None:
    from upcycle.run_pages.rendering import page_of

    text = page_of(page)
    write_page(text, place)
    if place != STDOUT:
        size = f"{len(text.encode()) / 1024:,.0f} KiB"
        whole = f"{len(page.shown)} of {amount(len(page.episodes), 'episode')} whole"
        human().print(f"{place}: {size}, {whole}", markup=False, soft_wrap=True)
        for warning in page.header.warnings:
            human().print(one_line(warning, 300), style="yellow", markup=False, soft_wrap=True)
