"""`upcycle trajectories regrade` of an evaluation in one process: real forks, a real replay."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.judges import judging
from tests.support.model_servers import KEY, MODEL, serving

from upcycle.cli.main import run
from upcycle.environment import landlock

Edit = Callable[[Callable[[dict[str, Any]], Any]], None]
FILE = "trajectories.jsonl"
LENIENT = """
def grade(answer, wanted, sold):
    return {"score": 0.75 if sold else 0.0, "success": bool(sold)}
"""


JUDGING = "from upcycle import Rubric\nfrom upcycle.graders import LLMJudgeGrader"
FAILS_ON_ONE = """
def grade(answer, wanted, sold):
    if answer.startswith("a "):
        raise KeyError(answer)
    return 1.0
"""
OTHER = """
from upcycle import Environment

env = Environment("shop")


@env.scenario("other")
async def other():
    yield "x"
    yield 1.0
"""


@pytest.fixture
def regrade(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Exit status, standard output and error."""

    def said(*flags: str) -> tuple[int, str, str]:
        status = run(["trajectories", "regrade", *flags])
        printed = capfd.readouterr()
        return status, printed.out, printed.err

    return said


def as_json(regrade: Callable[..., tuple[int, str, str]], *flags: str) -> tuple[int, dict[str, Any]]:
    """Exit status and the JSON line."""
    status, out, err = regrade(*flags, "--json")
    assert out, err
    return status, json.loads(out.splitlines()[-1])


def test_the_code_that_judged_gives_the_same_grades(shop: Path, regrade: Any) -> None:
    before = (shop / FILE).read_bytes()
    status, out, _ = regrade(FILE)
    assert status == 0
    lines = out.splitlines()
    assert lines[0].startswith(
        "here-0123456789ab: 8 of 8 trajectories graded again by the source that judged it"
    )
    assert "success 50.0% → 50.0%: +0.0 points; 0 gained, 0 lost" in lines
    assert "reward 0.500 → 0.500: +0.000; 0 up, 0 down" in lines
    assert "each one has the grade that it had" in lines
    assert lines[-1] == "a report: the run's grades, ledger and evidence are as they were"
    assert (shop / FILE).read_bytes() == before


def test_an_edited_grader_says_what_it_would_have_given(shop: Path, regrade: Any) -> None:
    (shop / "grading.py").write_text(LENIENT)
    status, _, err = regrade(FILE)
    assert status == 2
    assert "was judged by source" in err
    assert "--source" in err
    status, out, _ = regrade(FILE, "--source", "env.py", "-o", "all.jsonl")
    assert status == 0, out
    lines = out.splitlines()
    assert "by another source" in lines[0]
    assert any(
        one.startswith("success 50.0% → 75.0%: +25.0 points [") and "2 gained, 0 lost" in one for one in lines
    )
    assert any(one.startswith("reward 0.500 → 0.562: +0.062 [") and "2 up, 4 down" in one for one in lines)
    most = lines[lines.index("changed most:") + 1].split()
    assert most[:4] == ["+0.750", "0.000", "→", "0.750"]
    assert most[-1] == "here-0123456789ab/milk/0"
    rows = [json.loads(line) for line in Path("all.jsonl").read_text().splitlines()]
    assert len(rows) == 8
    milk = next(row for row in rows if row["trajectory"] == "here-0123456789ab/milk/1")
    assert (milk["old"]["reward"], milk["new"]["reward"], milk["old"]["subscores"]) == (
        0.0,
        0.75,
        {"exact": 0.0},
    )
    assert regrade(FILE, "--source", "env.py", "-o", "all.jsonl")[0] == 2  # it is there already


def test_what_says_something_else_now_is_named_and_not_scored(shop: Path, regrade: Any) -> None:
    (shop / "outside.txt").write_text("wet \x1b[31m")
    status, out, _ = regrade(FILE)
    assert status == 1
    assert "4 of 8 trajectories graded again" in out
    assert "  4 not reproducible: the environment says something else now" in out
    assert "call 1, weather in turn 1" in out
    assert "'today: dry' → 'today: wet" in out
    assert "the prompt" in out
    assert "\x1b" not in out
    status, found = as_json(regrade, FILE)
    assert (status, found["counts"]["not_reproducible"], found["coverage"]) == (1, 4, 0.5)
    places = {row["task"]: row["difference"]["place"] for row in found["trajectories"]["not_reproducible"]}
    assert places == {"now": "the prompt", "rain": "call 1, weather in turn 1"}
    assert all(row["new"] is None for row in found["trajectories"]["not_reproducible"])


def test_what_may_differ_is_ignored_where_it_is_named(shop: Path, regrade: Any) -> None:
    (shop / "outside.txt").write_text("wet")
    status, out, _ = regrade(FILE)
    assert status == 1
    assert "--ignore PATTERN" in out
    status, found = as_json(regrade, FILE, "--ignore", "today: \\w+")
    assert (status, found["counts"]["not_reproducible"]) == (1, 2)  # the prompts say it, too
    status, found = as_json(regrade, FILE, "--ignore", "today: \\w+", "--ignore", "is (dry|wet)")
    assert (status, found["up"], found["down"]) == (0, 0, 0)


def test_a_state_that_differs_counts_for_its_own_source_alone(shop: Path, regrade: Any) -> None:
    (shop / "outside.txt").write_text("hidden")
    status, found = as_json(regrade, FILE, "--task-ids", "tea,milk")
    assert status == 1
    places = {row["difference"]["place"] for row in found["trajectories"]["not_reproducible"]}
    assert places == {"the state after the prompt"}
    assert as_json(regrade, FILE, "--task-ids", "tea,milk", "--source", "env.py")[0] == 0


def test_a_grader_that_fails_on_one_answer_gives_0_and_one_that_always_fails_gives_nothing(
    shop: Path, regrade: Any
) -> None:
    (shop / "grading.py").write_text(FAILS_ON_ONE)
    status, found = as_json(regrade, FILE, "--source", "env.py")
    assert (status, found["up"], found["down"], found["new_success"]) == (0, 2, 0, 0.75)
    (shop / "grading.py").write_text("def grade(answer, wanted, sold):\n    raise KeyError('broken')\n")
    status, out, _ = regrade(FILE, "--source", "env.py")
    assert status == 1
    assert "0 of 8 trajectories graded again" in out
    assert "8×  environment_broken: grade: " in out
    assert "KeyError" in out


def test_a_failure_of_the_policy_that_no_grader_saw_stays_0(shop: Path, regrade: Any, edited: Edit) -> None:
    def failed(row: dict[str, Any]) -> dict[str, Any]:
        is_milk = row["task"]["slug"] == "milk"
        return {**row, "policy_failure": "tool_timeout" if is_milk else "", "answer": row["answer"]}

    edited(failed)
    (shop / "grading.py").write_text(LENIENT)
    status, found = as_json(regrade, FILE, "--source", "env.py")
    assert (status, found["counts"]["kept"], found["gained"], found["up"]) == (0, 2, 0, 0)


def test_calls_that_no_tool_ran_are_not_run_again(shop: Path, regrade: Any, edited: Edit) -> None:
    """They would sell, and the third one's result would be another one."""
    refused = "refused: more than 1 tool calls in one turn"

    def more(row: dict[str, Any]) -> dict[str, Any]:
        first, *rest = row["turns"]
        call = {"name": "sell", "arguments": {"item": "x"}, "result": refused, "is_error": True}
        return {**row, "turns": [{**first, "tool_calls": [*first["tool_calls"], call]}, *rest]}

    edited(more)
    assert regrade(FILE)[0] == 0


def test_a_judge_is_asked_where_one_is_named(
    shop: Path, regrade: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (shop / "env.py").read_text()
    (shop / "env.py").write_text(
        text.replace("from grading import grade", JUDGING).replace(
            "yield grade(str(answer), wanted, len(SOLD))",
            'yield await Rubric([LLMJudgeGrader(["is a number"])]).judged(answer)',
        )
    )
    flags = (FILE, "--source", "env.py", "--task-ids", "milk", "--limit", "1")
    status, out, _ = regrade(*flags)
    assert status == 1
    assert "a judge is asked, and none is named" in out
    with serving(judging(True)) as judge:
        monkeypatch.setenv("UPCYCLE_JUDGE", f"openai:{judge.url}/v1#{MODEL}")
        monkeypatch.setenv("UPCYCLE_JUDGE_KEY", KEY)
        status, out, _ = regrade(*flags)
    assert status == 0, out
    assert "reward 0.000 → 1.000" in out
    assert "1 trajectory was graded with a model as judge" in out
    assert len(judge.turns) == 1


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["here-ffffffffffff"], "there is no file"),
        (["nothing.jsonl"], "cannot be read"),
        ([FILE, "--source", "nowhere.py"], "nowhere.py is not there"),
        ([FILE, "--source", "outside.txt"], "is no Python file"),
        ([FILE, "--source", "other.py"], "has no scenario 'count'"),
        ([FILE, "--source", "grading.py"], "declares no environment"),
        ([FILE, "--task-ids", "tee"], "did you mean 'tea'?"),
        ([FILE, "--limit", "0"], "give at least 1"),
        ([FILE, "--ignore", "a", "--ignore", "("], "is no regular expression"),
        ([FILE, "--max-concurrent", "0"], "give 1 to 256"),
        ([FILE, "-o", "no/where.jsonl"], "there is no folder no"),
    ],
)
def test_what_cannot_be_begun_is_refused(shop: Path, regrade: Any, flags: list[str], says: str) -> None:
    (shop / "other.py").write_text(OTHER)
    status, out, err = regrade(*flags)
    assert (status, out) == (2, "")
    assert says in err


@pytest.mark.skipif(not landlock.version(), reason="this kernel holds nothing back")
def test_it_plays_in_a_cell_unless_no_cell_is_asked_for(
    shop: Path, regrade: Any, tmp_path_factory: Any
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "data.txt"
    elsewhere.write_text("data")
    text = (shop / "env.py").read_text()
    (shop / "env.py").write_text(f"{text}\n\nDATA = open({str(elsewhere)!r}).read()\n")
    flags = (FILE, "--source", "env.py", "--task-ids", "tea")
    status, _, err = regrade(*flags)
    assert status == 2
    assert "(--no-cell)" in err
    assert regrade(*flags, "--no-cell")[0] == 0
    writes = f"    for place in ('x.txt', {str(elsewhere)!r}):\n        open(place, 'w').write('by a tool')\n"
    (shop / "env.py").write_text(text.replace("    SOLD.append(item)\n", f"    SOLD.append(item)\n{writes}"))
    status, found = as_json(regrade, *flags)
    assert status == 1
    [first, _] = found["trajectories"]["not_reproducible"]
    assert "PermissionError" in first["difference"]["now"]
    assert elsewhere.read_text() == "data"
    assert not (shop / "x.txt").exists()
