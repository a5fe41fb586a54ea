"""Whom an evaluation of a benchmark is compared with, as plain text."""

from collections.abc import Iterator
from typing import Any

from upcycle.anchoring.anchors import AnchoredScore, AnchorReport, anchored
from upcycle.anchoring.percentiles import AnchorRefused
from upcycle.cli.report_text import one_line, table
from upcycle.reporting.episodes import EvaluatedRun
from upcycle.wording import amount


def anchor_of(run: EvaluatedRun) -> AnchorReport | str | None:
    """The report; in words why there is none; None for tasks of no benchmark. An evaluation that is over is
    never lost for it."""
    try:
        return anchored(run)
    except AnchorRefused as error:
        return str(error)


def anchor_json(found: AnchorReport | str | None) -> dict[str, Any]:
    """The field `anchor` of the JSON line; no field for tasks of no benchmark."""
    if found is None:
        return {}
    return {"anchor": {"refused": found} if isinstance(found, str) else found.to_json()}


def anchor_lines(found: AnchorReport | str | None) -> Iterator[str]:
    """What the end of `upcycle eval` says of it."""
    if found is None:
        return
    if isinstance(found, str):
        yield f"no anchor: {one_line(found, 200)}"
        return
    yield f"anchor: {found.anchor}, {amount(found.num_scripted, 'scripted player')}; {_people(found)}"
    if found.num_other_source:
        yield f"{amount(found.num_other_source, 'score')} of people judged by other code: left out"
    if found.notice:
        yield one_line(found.notice, 200)
    if found.refused or found.overall is None:
        yield f"no percentiles: {one_line(found.refused, 160)}"
        return
    rows = [["percentile among", found.anchor, "people"]]
    scores = (*found.families, found.overall) if len(found.families) > 1 else (found.overall,)
    yield from table(rows + [_row(one) for one in scores])


def _people(found: AnchorReport) -> str:
    if not found.people:
        return "no people (upcycle baseline record adds them)"
    tasks = found.overall.people_tasks if found.overall is not None else 0
    return f"{amount(len(found.people), 'person', 'people')} on {tasks} of these tasks"


def _row(one: AnchoredScore) -> list[str]:
    people = "–" if one.people is None else f"{one.people:.0f} ({amount(one.people_tasks, 'task')})"
    return [one_line(one.name, 40), "–" if one.scripted is None else f"{one.scripted:.0f}", people]
