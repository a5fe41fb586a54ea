"""`upcycle view` of the file that an evaluation in one process wrote."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.libs.upcycle.run_pages.reading_pages import Page, read
from tests.support.model_servers import KEY, MODEL, Turn, anthropic_shaped, serving

from upcycle.cli.exits import Exit
from upcycle.cli.main import run
from upcycle.reporting.trajectory_files import TrajectoryLines
from upcycle.task_rows import EnvironmentRef, Task
from upcycle.trajectory_lines.reading import demonstration_of

FAILING = """
from env import count
from upcycle import Taskset

TASKS = Taskset("shop-tasks", [
    count.task(slug="tea", item="tea", wanted="3"),
    count.task(slug="broken", item="tea", wanted="3", fails="answer"),
    count.task(slug="closed", item="tea", wanted="3", fails="prompt"),
], "unassigned")
"""


def answers(results: list[str]) -> Turn:
    """Looks for tea, and says what there is."""
    return Turn(results[-1]) if results else Turn("Let me look.", ("stock", {"item": "tea"}))


@pytest.fixture
def played(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of an evaluation: one task solved, one whose grader raises on the answer, one that never
    opens."""
    (shop / "tasks.py").write_text(FAILING)
    monkeypatch.setenv("UPCYCLE_CLAUDE_MODEL", MODEL)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    with serving(anthropic_shaped(answers)) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        assert run(["eval", "tasks.py", "claude", "--trajectories", "t.jsonl"]) in (Exit.OK, Exit.GATE_UNMET)
    return shop / "t.jsonl"


def viewed(path: Path | str = "t.jsonl", *flags: str) -> Page:
    """What `upcycle view` wrote."""
    assert run(["view", str(path), "-o", "run.html", *flags]) == Exit.OK
    return read(Path("run.html").read_text(encoding="utf-8"))


def test_an_evaluation_in_one_process_is_a_page(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = viewed()
    run_id = json.loads(played.read_text().splitlines()[0])["run_id"]
    assert page.texts["h1"] == [run_id]
    assert page.tags["details"] == 3
    for part in ("How much tea?", "Let me look.", "stock", f"claude#{MODEL}", "shop", "broken", "closed"):
        assert part in page.text
    for part in (
        "answer_error",
        "KeyError: '3'",
        "environment_broken",
        "RuntimeError: no shop today",
        "env.py",
    ):
        assert part in page.text
    assert "3 of 3 are shown whole; without a reward: 1." in page.text
    assert "run.html: " in capsys.readouterr().err
    assert KEY not in Path("run.html").read_text()


def test_each_line_names_its_format_run_task_tools_and_no_version(played: Path) -> None:
    lines = [line for _, line in TrajectoryLines(played).rows()]
    assert {line["format"] for line in lines} == {"upcycle-trajectory/1"}
    assert {(line["agent"], line["versions"]) for line in lines} == {(f"claude#{MODEL}", None)}
    assert [line["task"]["digest"] for line in lines if line["task"]["slug"] == "tea"] == [
        Task(EnvironmentRef("shop"), "count", '{"item":"tea","wanted":"3"}').digest
    ]
    taught = [demonstration_of(line, "line") for line in lines]
    assert [[tool["function"]["name"] for tool in one.tools] for one in taught if one.succeeded] == [
        ["stock", "keys", "orphan"]
    ]


def test_standard_output_is_the_page_alone(played: Path, capsysbinary: Any) -> None:
    capsysbinary.readouterr()
    assert run(["view", "t.jsonl", "-o", "-"]) == Exit.OK
    printed = capsysbinary.readouterr()
    assert printed.out.startswith(b"<!doctype html>")
    assert printed.out.rstrip().endswith(b"</html>")
    assert printed.err == b""


def test_a_page_that_is_there_is_replaced_whole(played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("run.html").write_text("old")
    replaced: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", lambda self, target: replaced.append(Path("run.html").read_text()))
        run(["view", "t.jsonl", "-o", "run.html"])
    assert replaced == ["old"]
    assert Path("run.html").read_text() == "old"
    viewed()
    assert [path.name for path in played.parent.glob(".run.html*")] == []


def line(**fields: Any) -> str:
    """One trajectory."""
    task = {"slug": "t", "scenario": "s", "args": {}, "family": "f", "environment": {"name": "e"}}
    row = {
        "run_id": "here-1",
        "task": task,
        "turns": [{"text": "hi"}],
        "reward": 0.5,
        "subscores": [],
        **fields,
    }
    return json.dumps(row) + "\n"


def lines(path: Path, *rows: str) -> Path:
    path.write_text("".join(rows))
    return path


def episodes(count: int) -> list[str]:
    return [line(episode_id=f"e{at:03}", reward=at / count, success=at == 0) for at in range(count)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no trajectory"),
        ("[1]\n", "t.jsonl:1: no trajectory: it has no task"),
        (line() + "{\n" + line(), "t.jsonl:2: not JSON"),
        (line()[:20], "t.jsonl holds no trajectory: line 1, the last one of t.jsonl, is cut off"),
        (line(reward="much"), "t.jsonl:1: no trajectory: ValueError: reward 'much'"),
        (line(reward=float("nan")), "reward nan is no finite number"),
        (line(turns=7), "t.jsonl:1: no trajectory: TypeError"),
        (line(task={}), "t.jsonl:1: no trajectory: KeyError: 'slug'"),
        (line(turns=["hi"]), "t.jsonl:1: no trajectory: "),
        (line(subscores=[{"name": "a"}]), "t.jsonl:1: no trajectory: KeyError: 'value'"),
        (line(subscores=[{"name": "a", "value": "b"}]), "a subscore 'b' is no finite number"),
        (
            line(subscores=[{"name": "a", "value": 1, "weight": []}]),
            "t.jsonl:1: no trajectory: ValueError: a weight",
        ),
        (line(reward=10**400), "t.jsonl:1: no trajectory: OverflowError"),
        (line(turns=[{"text": "a", "tool_calls": [7]}]), "t.jsonl:1: no trajectory: AttributeError"),
        (line(turns=[{"text": "a", "tool_calls": [{}]}]), "t.jsonl:1: no trajectory: KeyError: 'name'"),
        ("[" * 100_000 + "\n" + line(), "t.jsonl:1: not JSON"),
    ],
)
def test_what_is_no_trajectory_is_refused_with_its_line(
    shop: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (shop / "t.jsonl").write_text(text)
    assert run(["view", "t.jsonl", "-o", "run.html"]) == Exit.USAGE
    assert said in capsys.readouterr().err
    assert not Path("run.html").exists()


def test_a_last_line_that_its_writer_did_not_finish_is_left_out_and_it_is_said(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines(shop / "t.jsonl", *episodes(3), line(episode_id="lost")[:40])
    page = viewed("t.jsonl")
    said = "line 4, the last one of t.jsonl, is cut off: it is left out"
    assert said in page.text
    assert said in capsys.readouterr().err
    assert page.tags["details"] == 3


def planned(num_episodes: int, group: int = 1) -> dict[str, Any]:
    return {"taskset": "sums", "group": group, "num_episodes": num_episodes, "source_digest": "c0de" * 16}


def test_an_evaluation_that_ended_early_says_how_far_it_was(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [line(episode_id=f"e{at}", planned=planned(40)) for at in range(12)]
    page = viewed(lines(shop / "t.jsonl", *rows))
    assert "graded 12 of 40 tasks; interrupted" in page.text
    assert "graded 12 of 40 tasks; interrupted, or not over yet" in capsys.readouterr().err
    assert "success of 12 episodes that ended" in page.text
    assert "planned episodes" not in page.text
    missing = line(episode_id="m", reward=None, failure_kind="timeout", planned=planned(6, group=2))
    page = viewed(lines(shop / "t.jsonl", line(episode_id="e", planned=planned(6, group=2)), missing))
    assert "graded 1 of 6 episodes; interrupted" in page.text


def test_an_evaluation_of_all_its_episodes_is_complete(played: Path) -> None:
    page = viewed()
    assert "evaluation in one process · complete" in page.text
    assert "interrupted" not in page.text


def test_an_evaluation_is_found_by_its_id_where_it_was_started(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shop / ".upcycle" / "evaluations" / "here-1"
    folder.mkdir(parents=True)
    lines(folder / "trajectories.jsonl", line())
    assert run(["view", "here-1"]) == Exit.OK
    assert Path("here-1.html").exists()
    assert run(["view", str(folder), "-o", "run.html"]) == Exit.OK
    assert run(["view", "here-2"]) == Exit.USAGE
    assert (
        "here-2: there is no file .upcycle/evaluations/here-2/trajectories.jsonl" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("none/run.html", "there is no folder none"),
        (".", "is no file"),
        ("t.jsonl/run.html", "no folder"),
        ("--all", "-o is followed by '--all'"),
        ("tasks.py", "tasks.py exists and is no .html file"),
    ],
)
def test_a_place_that_is_none_is_refused_before_work(
    shop: Path, output: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["view", "t.jsonl", "-o", output]) == Exit.USAGE
    assert said in capsys.readouterr().err


def test_a_file_that_is_not_there_is_refused_by_name(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["view", "gone.jsonl"]) == Exit.USAGE
    assert "gone.jsonl cannot be read" in capsys.readouterr().err


def test_the_worst_the_best_and_a_sample_are_shown_whole(shop: Path) -> None:
    lines(shop / "t.jsonl", *episodes(100), line(episode_id="lost", reward=None, failure_kind="timeout"))
    page = viewed("t.jsonl", "--limit", "8")
    why = [text for text in page.texts["span"] if text in ("worst", "best", "sample", "no reward")]
    assert why == ["no reward", "worst", "worst", "best", "best", "sample", "sample", "sample"]
    assert "8 of 101 are shown whole" in page.text
    assert viewed("t.jsonl").tags["details"] == 24
    assert viewed("t.jsonl", "--all").tags["details"] == 101
    assert viewed("t.jsonl", "--limit", "0").tags["details"] == 0


def test_two_lines_of_one_name_are_two_episodes(shop: Path) -> None:
    lines(shop / "t.jsonl", line(episode_id="e", answer="one"), line(episode_id="e", answer="other"))
    page = viewed("t.jsonl", "--all")
    assert sorted(value for value in page.values("id") if value[0] == "e" and value[1:].isdigit()) == [
        "e1",
        "e2",
    ]
    assert [text for text in page.texts["pre"] if text in ("one", "other")] == ["one", "other"]


def test_more_than_a_page_holds_is_refused_by_name(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines(shop / "t.jsonl", *episodes(2_001))
    for flags, said in (
        (["--all"], "--all would show 2,001 episodes, a page holds 2,000"),
        (["--limit", "2001"], "--limit is 2001; show 0 to 2,000 episodes"),
        (["--limit=-1"], "--limit is -1"),
    ):
        assert run(["view", "t.jsonl", *flags]) == Exit.USAGE
        assert said in capsys.readouterr().err


def test_a_page_of_large_episodes_is_refused_by_its_size(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = [{"text": "x" * 7_000} for _ in range(40)]
    lines(shop / "t.jsonl", *(line(episode_id=f"e{at}", turns=turns) for at in range(200)))
    assert run(["view", "t.jsonl", "--all"]) == Exit.USAGE
    assert "page of here-1 with 200 episodes is over 32 MiB" in capsys.readouterr().err
    assert viewed("t.jsonl").tags["details"] == 24


def test_hostile_lines_stay_text_and_the_file_stays_small(shop: Path) -> None:
    texts = (
        "<script>alert(1)</script>",
        "</style><b>",
        "javascript:alert(1)",
        "\ud800",
        "\x1b[2J",
        "z" * 10**7,
    )
    calls = [{"name": text, "arguments": {text: text}, "result": text, "is_error": True} for text in texts]
    rows = [
        line(
            episode_id=f"{at}",
            run_id=texts[0],
            agent=text,
            answer=text,
            messages=[{"role": "user", "content": text}],
            turns=[{"text": text, "tool_calls": calls}],
            failure={"during": text, "kind": text, "message": text, "traceback": text},
            subscores=[{"name": text, "value": 0.5, "info": {text: text}}],
        )
        for at, text in enumerate(texts)
    ]
    lines(shop / "t.jsonl", *rows)
    harmless = viewed(lines(shop / "h.jsonl", line()))
    page = viewed("t.jsonl")
    assert page.unclosed == []
    assert page.texts["script"] == harmless.texts["script"]
    assert page.texts["style"] == harmless.texts["style"]
    assert page.tags.keys() <= harmless.tags.keys() | {"strong", "ul", "li", "a", "h3", "p", "h4", "pre"}
    assert page.text.count("<script>alert(1)</script>") > 6
    assert Path("run.html").stat().st_size < 1_500_000
    assert "10,000,000" not in page.text
    assert "9,992,000 more characters" in page.text
