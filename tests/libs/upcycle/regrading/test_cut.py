"""`upcycle trajectories regrade --cut`: successes that are reached before the evidence is read."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.libs.upcycle.regrading.conftest import played

from upcycle.cli.main import run
from upcycle.playing.recorded import RecordedEpisode, StoredGrade
from upcycle.regrading.cut_report import CutReport

FILE = "trajectories.jsonl"
EASY = """
def grade(answer, wanted, sold):
    return {"score": 1.0 if sold or answer == wanted else 0.0}
"""
"""Pays as soon as anything was sold, whatever is answered."""
Edit = Callable[[Callable[[dict[str, Any]], Any]], None]


@pytest.fixture
def cut(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Exit status, standard output and error."""

    def said(share: str, *flags: str) -> tuple[int, str, str]:
        status = run(["trajectories", "regrade", FILE, "--cut", share, *flags])
        printed = capfd.readouterr()
        return status, printed.out, printed.err

    return said


def test_a_clean_grader_passes_no_beginning(shop: Path, cut: Any) -> None:
    """Four of eight trajectories succeeded; at half of them the item is sold, and nothing is answered."""
    status, out, _ = cut("0.5")
    assert status == 0, out
    lines = out.splitlines()
    assert lines[0].startswith("here-0123456789ab: the first 50% of 4 successes graded by ")
    assert lines[1] == "0 of 4 succeed already, 0.0%; 2% are tolerated"
    assert "4 left out: no success, guided, or ended by a failure of the policy" in lines
    assert "alarm" not in out


def test_a_grader_that_pays_before_the_answer_raises_the_alarm(shop: Path, cut: Any) -> None:
    (shop / "grading.py").write_text(EASY)
    played(shop)
    status, out, _ = cut("0.5", "--json")
    found = json.loads(out.splitlines()[-1])
    assert (status, found["kind"], found["is_alarm"]) == (1, "regrade_cut", True)
    assert (found["num_cut"], len(found["passed"]), found["rate"]) == (6, 6, 1.0)
    assert {one["task"] for one in found["passed"]} == {"tea", "milk", "now"}
    status, out, _ = cut("0.5")
    assert status == 1
    assert "alarm: success is reached before the evidence is read" in out
    assert "upcycle trajectories show here-0123456789ab/milk/0" in out


def test_an_answer_that_stands_before_the_evidence_is_found(shop: Path, cut: Any, edited: Edit) -> None:
    """The agent said the right answer already when it called the tool."""

    def knows(row: dict[str, Any]) -> dict[str, Any]:
        first = {**row["turns"][0], "text": "1 sold"}
        return {**row, "turns": [first, *row["turns"][1:]]}

    edited(knows)
    status, out, _ = cut("0.5")
    assert (status, out.splitlines()[1]) == (1, "4 of 4 succeed already, 100.0%; 2% are tolerated")


def test_guided_trajectories_are_left_out_and_nothing_graded_is_no_all_clear(
    shop: Path, cut: Any, edited: Edit
) -> None:
    edited(lambda row: {**row, "guidance": "Say 1 sold."})
    status, out, _ = cut("0.5")
    assert status == 1
    assert "nothing is known: no success of it could be graded at its beginning" in out
    assert "8 left out" in out


@pytest.mark.parametrize("share", ["1", "-0.1", "nan"])
def test_a_share_that_cuts_nothing_or_everything_is_refused(shop: Path, cut: Any, share: str) -> None:
    status, out, err = cut(share)
    assert (status, out) == (2, "")
    assert f"--cut is {share}" in err


def test_what_is_left_of_an_episode() -> None:
    turns: list[dict[str, Any]] = [{"text": text, "tool_calls": []} for text in ("one", " ", "three", "four")]
    whole = RecordedEpisode([], turns, "four", (), "", StoredGrade(1.0, True))
    kept = {share: whole.cut_at(share) for share in (0.01, 0.5, 0.75, 0.99)}
    assert {share: len(one.turns) for share, one in kept.items()} == {0.01: 1, 0.5: 2, 0.75: 3, 0.99: 3}
    assert [one.answer for one in kept.values()] == ["one", "one", "three", "three"]
    single = replace(whole, turns=turns[:1], answer="checkout")
    assert (single.cut_at(0.5).answer, single.cut_at(0.5).turns[0]["text"]) == ("chec", "o")


@pytest.mark.parametrize(
    ("passed", "of", "alarm"),
    [
        (0, 60, False),
        (1, 1, False),
        (2, 2, True),
        (4, 60, False),
        (5, 60, True),
        (0, 0, False),
        (231, 2000, True),
        (100, 5000, False),
    ],
)
def test_the_alarm_keeps_its_error_by_the_exact_binomial(passed: int, of: int, alarm: bool) -> None:
    """By hand: P(X >= 5 of 60) at 2 % is 0.0070, P(X >= 4) is 0.0325; one of one is 0.02."""
    report = CutReport(0.5, of, (None,) * passed, 0, 0)  # type: ignore[arg-type]
    assert report.is_alarm is alarm
