"""An evaluation of a benchmark beside its calibration: percentiles by task, averaged over a category."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from upcycle.anchoring.people import PeopleScores, file_for, read_people
from upcycle.anchoring.percentiles import AnchorRefused, percentile
from upcycle.reporting.episodes import EpisodeRow, EvaluatedRun
from upcycle.shipped import BENCHMARKS, Benchmark
from upcycle.task_rows import canonical_json, task_digest

Scores = Mapping[str, Sequence[float]]
"""Of the players of a calibration, by task digest."""


@dataclass(frozen=True, slots=True)
class AnchoredScore:
    """Mean percentiles of the graded episodes of a category. people: None where people played none of its
    tasks; people_tasks: how many of them they played."""

    name: str
    scripted: float | None
    people: float | None
    people_tasks: int


@dataclass(frozen=True, slots=True)
class AnchorReport:
    """anchor: the name of the scripted calibration. num_other_source: scores of people that other code
    judged, which are left out. refused: why there are no percentiles."""

    benchmark: str
    anchor: str
    num_scripted: int
    people: tuple[str, ...]
    num_other_source: int
    overall: AnchoredScore | None
    families: tuple[AnchoredScore, ...]
    refused: str = ""
    notice: str = ""

    def to_json(self) -> dict[str, Any]:
        """For a JSON line."""
        return asdict(self)


def anchored(run: EvaluatedRun, people_file: Path | None = None) -> AnchorReport | None:
    """The report; None where the tasks are of no benchmark that ships. people_file: by default the one of the
    benchmark in this folder, where it is there. Raises AnchorRefused for a file that is none."""
    benchmark = benchmark_of({one.task_digest for one in run.episodes})
    if benchmark is None:
        return None
    name, num_players, scripted = scripted_scores(benchmark)
    path = people_file or file_for(benchmark.name)
    found = read_people(path).firsts() if people_file or path.exists() else PeopleScores()
    theirs, num_other = _of_source(found, scripted, run.source_digest)
    people = tuple(sorted({person for rows in theirs.values() for person, _ in rows}))
    scores = {digest: [reward for _, reward in rows] for digest, rows in theirs.items()}
    facts = (benchmark.name, name, num_players, people, num_other)
    families: defaultdict[str, list[EpisodeRow]] = defaultdict(list)
    for one in run.episodes:
        families[one.family].append(one)
    try:
        return AnchorReport(
            *facts,
            _score("all", run.episodes, scripted, scores),
            tuple(_score(family, rows, scripted, scores) for family, rows in sorted(families.items())),
            notice=found.notice,
        )
    except AnchorRefused as error:
        return AnchorReport(*facts, None, (), error.message, found.notice)


def benchmark_of(digests: set[str]) -> Benchmark | None:
    """The benchmark that all these tasks are of."""
    fitting = [one for one in BENCHMARKS.values() if digests and digests <= scripted_scores(one)[2].keys()]
    return fitting[0] if fitting else None


@cache
def scripted_scores(benchmark: Benchmark) -> tuple[str, int, Scores]:
    """(name of the calibration, how many players, their scores) of the file that ships with a benchmark."""
    table = json.loads((benchmark.tasks_file.parent / "baseline.json").read_text())
    scores: defaultdict[str, list[float]] = defaultdict(list)
    for player in table["players"]:
        for number, reward in player["rewards"].items():
            arguments = canonical_json({"number": int(number)})
            scores[task_digest(benchmark.name, benchmark.scenario, arguments)].append(reward)
    return table["anchor"], len(table["players"]), scores


def _of_source(
    found: PeopleScores, tasks: Scores, source_digest: str
) -> tuple[dict[str, list[tuple[str, float]]], int]:
    """(person and reward by task, how many scores other code judged)."""
    kept: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    num_other = 0
    for one in found.scores:
        if source_digest and one.source_digest != source_digest:
            num_other += 1
        elif one.task_digest in tasks:
            kept[one.task_digest].append((one.person, one.reward))
    return kept, num_other


def _score(name: str, rows: Sequence[EpisodeRow], scripted: Scores, people: Scores) -> AnchoredScore:
    played = {one.task_digest for one in rows if people.get(one.task_digest)}
    return AnchoredScore(name, _mean(rows, scripted), _mean(rows, people), len(played))


def _mean(rows: Sequence[EpisodeRow], scores: Scores) -> float | None:
    found = [
        percentile(one.reward, scores[one.task_digest], f"task {one.task_slug}")
        for one in rows
        if one.reward is not None and scores.get(one.task_digest)
    ]
    return sum(found) / len(found) if found else None
