"""Two evaluations compared: the numbers worked by hand, and what does not compare."""

import json
from pathlib import Path

import pytest
from tests.libs.upcycle.reporting.rows import episode, evaluation

from upcycle.cli.compare import comparison_lines
from upcycle.cli.exits import Exit
from upcycle.cli.main import run
from upcycle.reporting.comparison import NotComparable, compare
from upcycle.reporting.episodes import EvaluatedRun
from upcycle.reporting.verdicts import verdict_of

SOURCE = "c0de" * 16


def solved(run_id: str, tasks: dict[str, float | None], **fields: str) -> EvaluatedRun:
    """Each task once; those whose name begins with x are of family x."""
    rows = [
        episode(slug, 0, reward, family="x" if slug.startswith("x") else "y", task_digest=f"digest of {slug}")
        for slug, reward in tasks.items()
    ]
    return evaluation(*rows, group=1, run_id=run_id, **fields)


A = solved("run-a", {"x1": 0.0, "x2": 0.0, "x3": 1.0, "y1": 1.0, "y2": 0.5})
B = solved("run-b", {"y2": 0.5, "y1": 0.0, "x3": 1.0, "x2": 1.0, "x1": 1.0})


def test_tasks_are_paired_by_name_and_counted_per_family() -> None:
    found = compare(A, B)
    counted = [
        (one.name, one.num_tasks, one.won, one.lost, one.tied) for one in (found.overall, *found.families)
    ]
    assert counted == [("all", 5, 2, 1, 2), ("x", 3, 2, 0, 1), ("y", 2, 0, 1, 1)]
    assert (found.overall.a_success, found.overall.b_success) == (0.4, 0.6)
    assert found.overall.success.value == pytest.approx(1 / 5)
    assert found.overall.reward is not None
    assert found.overall.reward.value == pytest.approx(1 / 5)


def test_the_p_value_is_exact_and_two_sided() -> None:
    # Of three tasks that differ B has two: P(X >= 2 | 3, 1/2) = 1/2, twice that is 1.
    assert compare(A, B).p_value == 1.0
    # Of six that differ B has all: 2 / 2⁶, from either side.
    none, every = ({f"x{at}": reward for at in range(6)} for reward in (0.0, 1.0))
    for first, second in ((none, every), (every, none)):
        assert compare(solved("a", dict(first)), solved("b", dict(second))).p_value == pytest.approx(2 / 64)


def test_the_other_way_round_has_the_other_sign() -> None:
    one, other = compare(A, B).overall, compare(B, A).overall
    assert one.success.interval is not None
    assert other.success.interval is not None
    assert one.success.interval.low == pytest.approx(-other.success.interval.high)
    assert (one.won, one.lost) == (other.lost, other.won)


def test_a_missing_episode_is_no_success_and_its_task_has_no_reward_to_compare() -> None:
    found = compare(A, solved("run-b", {"x1": None, "x2": 0.0, "x3": None, "y1": 1.0, "y2": 0.5}))
    assert found.num_ungraded == 2
    assert (found.overall.won, found.overall.lost, found.overall.tied) == (0, 0, 3)
    assert found.overall.success.value == pytest.approx(-1 / 5)


def test_another_source_is_refused_by_its_digest() -> None:
    with pytest.raises(
        NotComparable, match=r"A \(run-a\) is of source c0dec0dec0de, B \(run-b\) of source not known"
    ):
        compare(A, solved("run-b", {"x1": 1.0}, source_digest=""))


def test_two_sources_that_are_not_known_compare_and_it_is_said() -> None:
    first, second = (solved(name, {"x1": 1.0, "x2": 0.5}, source_digest="") for name in ("a", "b"))
    said = "the source that judged them is not known: that it was the same is not checked"
    assert said in list(comparison_lines(first, second, compare(first, second)))
    assert said not in list(comparison_lines(A, B, compare(A, B)))


def test_other_tasks_are_refused_by_name() -> None:
    with pytest.raises(NotComparable, match="only A has x2, x3, y1 and 1 more; only B has z"):
        compare(A, solved("run-b", {"x1": 1.0, "z": 1.0}))
    changed = evaluation(*[episode(one.task_slug, 0, 1.0, task_digest="other") for one in A.episodes[:1]])
    with pytest.raises(NotComparable, match="other arguments have x1"):
        compare(solved("run-a", {"x1": 0.0}), changed)


def test_the_text_names_both_and_says_what_the_interval_says() -> None:
    lines = list(comparison_lines(A, B, compare(A, B)))
    assert lines[0] == "A  run-a: m v0 on sums@1, group 1, success 40.0%"
    assert lines[2] == "B − A over 5 tasks, 95 % intervals clustered by task:"
    assert lines[3].startswith("success +20.0 points [-")
    assert "success: 5 tasks, at least 10 say which is better" in lines
    assert "reward: 5 tasks, at least 10 say which is better" in lines
    assert any(line.split()[:3] == ["y", "2", "-50.0"] and line.endswith("0    1     1") for line in lines)


def said_of(a: dict[str, float | None], b: dict[str, float | None]) -> tuple[str, str, tuple[str, str, str]]:
    """(better, decided by, lines) of a comparison."""
    found = verdict_of(compare(solved("a", a), solved("b", b)).overall)
    success, reward, last = found.lines()
    return found.better, found.decided_by, (success, reward, last)


def tasks(*rewards: float) -> dict[str, float | None]:
    return {f"x{at:02d}": reward for at, reward in enumerate(rewards)}


def test_the_verdict_by_reward_is_of_ten_tasks_and_of_no_fewer() -> None:
    low, high = (tasks(*(first + at / 100 for at in range(10))) for first in (0.1, 0.5))
    high["x00"] = 0.4
    better, decided_by, lines = said_of(low, high)
    assert (better, decided_by) == ("b", "reward")
    assert lines == (
        "success: the same on every task",
        "reward: higher, its interval lies above 0",
        "B is better, decided by reward: success shows no difference",
    )
    for one in (low, high):
        del one["x09"]
    better, decided_by, lines = said_of(low, high)
    assert (better, decided_by) == ("unknown", "")
    assert lines[1] == "reward: 9 tasks, at least 10 say which is better"
    assert lines[2] == "which one is better cannot be said"


def test_success_decides_where_both_speak() -> None:
    worse, better = tasks(*[0.0] * 10, 1.0, 1.0), tasks(*[1.0] * 9, 0.0, 1.0, 1.0)
    assert said_of(worse, better)[:2] == ("b", "both")
    assert said_of(worse, better)[2][2] == "B is better: success and reward both say so"
    assert said_of(better, worse)[:2] == ("a", "both")
    assert said_of(better, worse)[2][0] == "success: lower, its interval lies below 0"
    # More tasks are solved whole, and the others earn much less: the mean reward falls.
    halves, wholes = tasks(*[0.8] * 20), tasks(*[1.0] * 6, *[0.0] * 14)
    found, decided_by, lines = said_of(halves, wholes)
    assert (found, decided_by) == ("b", "success")
    assert lines[1] == "reward: lower, its interval lies below 0"
    assert lines[2] == "B is better, decided by success, though its reward is lower"


def test_success_decides_alone_where_rewards_show_nothing() -> None:
    before, after = tasks(*[0.0] * 9, *[0.9] * 27), tasks(*[1.0] * 9, *[0.4] * 18, *[0.9] * 9)
    better, decided_by, lines = said_of(before, after)
    assert (better, decided_by) == ("b", "success")
    assert lines == (
        "success: higher, its interval lies above 0",
        "reward: no difference is shown, its interval holds 0",
        "B is better, decided by success: reward shows no difference",
    )


def test_no_difference_is_said_of_both() -> None:
    mixed = tasks(*[0.0, 1.0] * 6)
    swapped = tasks(*[1.0, 0.0] * 6)
    better, decided_by, lines = said_of(mixed, swapped)
    assert (better, decided_by) == ("none", "")
    assert lines[2] == "no difference is shown, by success or by reward"
    same = said_of(mixed, mixed)
    assert same[:2] == ("none", "")
    assert same[2][:2] == ("success: the same on every task", "reward: the same on every task")


def test_one_gain_on_every_task_has_no_interval() -> None:
    better, _, lines = said_of(tasks(*[0.0] * 12), tasks(*[1.0] * 12))
    assert better == "unknown"
    assert lines[0] == "success: higher by the same on every task, which has no interval"


def test_the_json_line_has_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name, rewards in (("a", [0.0] * 12), ("b", [1.0] * 9 + [0.0] * 3)):
        paths.append(
            trajectories(tmp_path / f"{name}.jsonl", {f"x{at}": one for at, one in enumerate(rewards)})
        )
    assert run(["compare", *paths, "--json"]) == Exit.OK
    line = json.loads(capsys.readouterr().out)
    assert line["verdict"] == {"success": "higher", "reward": "higher", "better": "b", "decided_by": "both"}


def test_another_sampling_is_said() -> None:
    cold = evaluation(*B.episodes, group=1, sampling={"temperature": 0.0})
    assert compare(A, cold).differing == ("temperature: 1.0, 0.0",)


def test_two_files_compare_without_a_platform(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for one in (A, B):
        paths.append(str(tmp_path / f"{one.run_id}.json"))
        Path(paths[-1]).write_text(json.dumps({"kind": "done", "evaluation": one.to_json()}) + "\n")
    assert run(["compare", *paths, "--json"]) == Exit.OK
    line = json.loads(capsys.readouterr().out)
    assert (line["kind"], line["a"], line["overall"]["won"]) == ("comparison", "run-a", 2)
    assert run(["compare", paths[0], str(tmp_path / "none.json")]) == Exit.USAGE


def trajectories(path: Path, rewards: dict[str, float], **fields: object) -> str:
    """The file of an evaluation in one process."""
    planned = {"taskset": "sums", "source_digest": SOURCE, "group": 1, "num_episodes": len(rewards), **fields}
    rows = [
        {
            "run_id": path.stem,
            "episode_id": f"{path.stem}/{slug}/0",
            "task": {"slug": slug, "scenario": "s", "args": {"n": slug}, "environment": {"name": "e"}},
            "turns": [],
            "reward": reward,
            "success": reward == 1.0,
            "planned": planned,
        }
        for slug, reward in rewards.items()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_files_of_evaluations_in_one_process_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = trajectories(tmp_path / "a.jsonl", {"x1": 0.0, "x2": 0.0, "x3": 1.0})
    b = trajectories(tmp_path / "b.jsonl", {"x3": 1.0, "x2": 1.0, "x1": 1.0})
    assert run(["compare", a, b]) == Exit.OK
    printed = capsys.readouterr().out
    assert "A  a: not named on sums, group 1, success 33.3%" in printed
    assert "success +66.7 points" in printed
    assert "the source that judged them is not known" not in printed
    other = trajectories(tmp_path / "c.jsonl", {"x1": 1.0, "x2": 1.0, "x3": 1.0}, source_digest="d" * 64)
    assert run(["compare", a, other]) == Exit.USAGE
    assert "other code judged them" in capsys.readouterr().err


def test_the_same_slug_with_other_arguments_is_another_task_in_files_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = trajectories(tmp_path / "a.jsonl", {"x1": 0.0})
    b = trajectories(tmp_path / "b.jsonl", {"x1": 1.0})
    Path(b).write_text(Path(b).read_text().replace('"n": "x1"', '"n": "x2"'))
    assert run(["compare", a, b]) == Exit.USAGE
    assert "other arguments have x1" in capsys.readouterr().err


def test_an_evaluation_that_was_interrupted_does_not_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = trajectories(tmp_path / "a.jsonl", {"x1": 0.0, "x2": 0.0}, num_episodes=40)
    b = trajectories(tmp_path / "b.jsonl", {"x1": 1.0, "x2": 0.0}, num_episodes=40)
    assert run(["compare", a, b]) == Exit.USAGE
    said = capsys.readouterr().err
    assert "A (a) is not whole: graded 2 of 40 tasks; interrupted; play it again" in said


def test_a_cut_last_line_is_left_out_of_a_comparison_and_a_damaged_one_before_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = trajectories(tmp_path / "a.jsonl", {"x1": 0.0, "x2": 0.0}, num_episodes=0)
    b = trajectories(tmp_path / "b.jsonl", {"x1": 1.0, "x2": 0.0}, num_episodes=0)
    whole = Path(b).read_text()
    Path(b).write_text(whole + whole[:30])
    assert run(["compare", a, b]) == Exit.OK
    assert "line 3, the last one of b.jsonl, is cut off: it is left out" in capsys.readouterr().out
    Path(b).write_text(whole.replace("\n", "\n{\n", 1))
    assert run(["compare", a, b]) == Exit.USAGE
    assert "b.jsonl:2: not JSON" in capsys.readouterr().err


def test_what_is_no_evaluation_is_answered_with_what_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    kinds = "give the output of `upcycle eval … --json`, a trajectories.jsonl, or the id of a run"
    assert run(["compare", "a.jsonl", "b.jsonl"]) == Exit.USAGE
    assert f"a.jsonl cannot be read: No such file or directory; {kinds}" in capsys.readouterr().err
    Path("tasks.jsonl").write_text('{"slug": "t"}\n')
    assert run(["compare", "tasks.jsonl", "tasks.jsonl"]) == Exit.USAGE
    assert kinds in capsys.readouterr().err
    two = trajectories(tmp_path / "a.jsonl", {"x1": 0.0})
    Path("two.jsonl").write_text(Path(two).read_text() + Path(two).read_text().replace('"a"', '"b"'))
    assert run(["compare", "two.jsonl", "a.jsonl"]) == Exit.USAGE
    assert "two.jsonl holds 2 evaluations: a, b; give a file of one" in capsys.readouterr().err
    assert run(["compare", "a", "a.jsonl"]) == Exit.UNREACHABLE
    assert "a is no file, and as the id of a run: no running platform" in capsys.readouterr().err
