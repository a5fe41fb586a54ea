"""Percentiles among the scores of a calibration, and the files that people's scores are in."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from upcycle.anchoring.anchors import anchored, benchmark_of, scripted_scores
from upcycle.anchoring.people import (
    SCHEMA,
    PersonScore,
    append,
    check_can_append,
    checked_person,
    read_people,
)
from upcycle.anchoring.percentiles import AnchorRefused, percentile
from upcycle.cli.anchor_text import anchor_json, anchor_lines, anchor_of
from upcycle.reporting.episodes import EpisodeRow, EvaluatedRun
from upcycle.shipped import BENCHMARKS
from upcycle.task_rows import task_digest

SCORE = PersonScore(
    "ann", "sheet-50", "sums-01", "d1", "sums", 0.5, False, 60.0, "2026-11-24T00:00:00+00:00", "s1"
)


def digest(number: int) -> str:
    """Of a task of sheet-50."""
    return task_digest("sheet-50", "workbook", json.dumps({"number": number}))


def evaluated(*rewards: float | None, source: str = "s1", **fields: Any) -> EvaluatedRun:
    """Tasks 0, 1, … of sheet-50, of the families a and b in turns."""
    rows = tuple(
        EpisodeRow(f"t{at}", "ab"[at % 2], f"e{at}", f"traj-{at}", reward, reward == 1, digest(at))
        for at, reward in enumerate(rewards)
    )
    run = EvaluatedRun("run-1", "sheet-50", "td", source, "m", (1,), 1, {}, 1.0, rows)
    return replace(run, **fields)


@pytest.mark.parametrize(
    ("reward", "scores", "expected"),
    [
        (0.5, [0.0, 0.25, 0.75, 1.0], 50.0),  # two of four are lower
        (1.0, [0.0, 0.25, 0.75, 1.0], 87.5),  # three, and half of the equal one
        (0.0, [0.0, 0.0, 1.0, 1.0], 25.0),
        (0.0, [0.5], 0.0),
        (0.5, [0.5], 50.0),
    ],
)
def test_a_percentile_counts_the_lower_scores_and_half_of_the_equal_ones(
    reward: float, scores: list[float], expected: float
) -> None:
    assert percentile(reward, scores) == expected


@pytest.mark.parametrize(
    ("reward", "scores", "says"),
    [
        (1.7, [0.5], "reward 1.7 of task t1 is outside 0 to 1"),
        (-0.1, [0.5], "reward -0.1 of task t1 is outside"),
        (float("nan"), [0.5], "reward nan of task t1 is outside"),
        (0.5, [0.5, 3.0], "score 3 of task t1 is outside 0 to 1"),
        (0.5, [], "no score of task t1"),
    ],
)
def test_what_has_no_percentile_is_refused_by_name(reward: float, scores: list[float], says: str) -> None:
    with pytest.raises(AnchorRefused, match=says):
        percentile(reward, scores, "task t1")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_is_known_by_its_tasks_and_has_five_scripted_players(name: str) -> None:
    anchor, num_players, scores = scripted_scores(BENCHMARKS[name])
    assert (anchor, num_players) == ("scripted-5", 5)
    assert {len(rewards) for rewards in scores.values()} == {5}
    assert benchmark_of(set(list(scores)[:3])) == BENCHMARKS[name]
    assert benchmark_of({*list(scores)[:3], "another"}) is None


def test_the_digests_are_those_of_the_tasks() -> None:
    from upcycle.cli.tasksets import load_tasksets

    tasks = load_tasksets(BENCHMARKS["repair-30"].tasks_file)["repair-30"]
    assert {task.digest for task in tasks} == set(scripted_scores(BENCHMARKS["repair-30"])[2])


def test_a_report_has_percentiles_among_scripts_and_among_people(tmp_path: Path) -> None:
    file = tmp_path / "people.jsonl"
    for person, number, reward in (("ann", 0, 0.2), ("bob", 0, 0.9), ("ann", 1, 0.4)):
        append(file, replace(SCORE, person=person, task_digest=digest(number), reward=reward))
    append(file, replace(SCORE, task_digest=digest(0), reward=1.0))  # again: the first time counts
    append(file, replace(SCORE, person="eve", task_digest=digest(0), source_digest="s2"))
    report = anchored(evaluated(0.5, 0.4, 1.0, None), file)
    assert report is not None
    assert (report.anchor, report.num_scripted, report.people) == ("scripted-5", 5, ("ann", "bob"))
    assert report.num_other_source == 1
    assert [(one.name, one.people, one.people_tasks) for one in report.families] == [
        ("a", 50.0, 1),  # of t0: one of two is lower; no other person's of t2
        ("b", 50.0, 1),  # of t1: equal to the only one
    ]
    assert report.overall is not None
    assert (report.overall.people, report.overall.people_tasks) == (50.0, 2)
    scripted = scripted_scores(BENCHMARKS["sheet-50"])[2]
    expected = [percentile(reward, scripted[digest(at)]) for at, reward in enumerate((0.5, 0.4, 1.0))]
    assert report.overall.scripted == pytest.approx(sum(expected) / 3)
    lines = list(anchor_lines(report))
    assert lines[0] == "anchor: scripted-5, 5 scripted players; 2 people on 2 of these tasks"
    assert lines[1] == "1 score of people judged by other code: left out"
    assert lines[2].split() == ["percentile", "among", "scripted-5", "people"]
    assert lines[-1].startswith("all ")
    assert lines[-1].endswith("50 (2 tasks)")


def test_rewards_outside_0_to_1_have_no_anchor_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = anchor_of(evaluated(0.5, 1.7))
    assert list(anchor_lines(found)) == [
        "anchor: scripted-5, 5 scripted players; no people (upcycle baseline record adds them)",
        "no percentiles: reward 1.7 of task t1 is outside 0 to 1: it has no percentile",
    ]
    assert anchor_json(found)["anchor"]["refused"].startswith("reward 1.7")


def test_other_tasks_have_no_anchor_and_a_damaged_file_loses_no_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = replace(evaluated(1.0), episodes=(replace(evaluated(1.0).episodes[0], task_digest="x"),))
    assert anchor_of(other) is None
    assert (list(anchor_lines(None)), anchor_json(None)) == ([], {})
    file = tmp_path / ".upcycle/baselines/sheet-50.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text('{"no": "score"}\n')
    (line,) = anchor_lines(anchor_of(evaluated(1.0)))
    assert line.startswith("no anchor: .upcycle/baselines/sheet-50.jsonl:1: no line of a calibration")


def test_a_score_is_one_line_with_all_that_it_is_of(tmp_path: Path) -> None:
    file = tmp_path / "a" / "people.jsonl"
    append(file, SCORE)
    append(file, replace(SCORE, person="bob"))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert rows[0] == {"schema": SCHEMA, **asdict(SCORE)}
    found = read_people(file)
    assert (found.people, found.notice, found.scores[0]) == (("ann", "bob"), "", SCORE)


def test_a_cut_last_line_is_left_out_by_name_and_nothing_is_added_to_it(tmp_path: Path) -> None:
    file = tmp_path / "people.jsonl"
    append(file, SCORE)
    file.write_bytes(file.read_bytes() + b'{"schema": "upc')
    assert read_people(file).notice == "line 2, the last one of people.jsonl, is cut off: it is left out"
    assert len(read_people(file).scores) == 1
    with pytest.raises(AnchorRefused, match=r"is cut off.*remove that line"):
        check_can_append(file)


def test_a_last_line_without_its_end_is_kept_apart_from_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / "people.jsonl"
    append(file, SCORE)
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    check_can_append(file)
    append(file, SCORE)
    assert len(read_people(file).scores) == 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[]", ":1: no line of a calibration"),
        ("{", ":1: not JSON"),
        ({"person": 3}, ":1: person is 3, and no text"),
        ({"reward": 1.5}, ":1: reward 1.5 is outside 0 to 1"),
        ({"reward": True}, ":1: reward True is outside 0 to 1"),
        ({"schema": "upcycle-calibration/2"}, ":1: no line of a calibration"),
        ({"date": None, "seconds": "x", "person": None}, ":1: person is None"),
    ],
)
def test_a_line_that_is_no_score_is_refused_with_its_number(
    tmp_path: Path, line: str | dict[str, Any], says: str
) -> None:
    file = tmp_path / "people.jsonl"
    row = line if isinstance(line, str) else json.dumps({"schema": SCHEMA, **asdict(SCORE), **line})
    file.write_text(f"{row}\n{json.dumps({'schema': SCHEMA, **asdict(SCORE)})}\n")
    with pytest.raises(AnchorRefused, match=says):
        read_people(file)


def test_a_line_without_a_field_names_it(tmp_path: Path) -> None:
    file = tmp_path / "people.jsonl"
    row = {"schema": SCHEMA, **asdict(SCORE)}
    del row["seconds"]
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(AnchorRefused, match=":1: it has no seconds"):
        read_people(file)


def test_what_cannot_be_anchored_is_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(AnchorRefused, match=r"reward 1\.2 of task sums-01 is outside 0 to 1"):
        append(tmp_path / "people.jsonl", replace(SCORE, reward=1.2))
    assert not (tmp_path / "people.jsonl").exists()
    for name in ("", "  ", "a\nb", "x" * 81):
        with pytest.raises(AnchorRefused, match="printable text"):
            checked_person(name)
