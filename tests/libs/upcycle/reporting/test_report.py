"""The report of an evaluation, worked by hand, as values and as text."""

import json
from pathlib import Path

import pytest
from tests.libs.upcycle.reporting.rows import episode, evaluation

from upcycle.api.trajectory.v1 import trajectory_pb2 as pb
from upcycle.cli.report_text import report_lines
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY
from upcycle.reporting.comparison import compare
from upcycle.reporting.episodes import EvaluatedRun, NoEvaluation
from upcycle.reporting.files import evaluation_in
from upcycle.reporting.reading import ending, first_tool_error
from upcycle.reporting.report import AttemptScore, EvaluationReport, report_of

HOSTILE = "\x1b[2Jgone\nlookup: \x07bell"
RUN = evaluation(
    episode("a", 0, 1.0, num_turns=2, num_tokens=10, subscores={"right": 1.0, "style": 0.5}),
    episode("a", 1, 0.0, num_turns=4, num_tokens=30, subscores={"right": 0.0}, ended="out of turns"),
    episode("b", 0, 1.0, num_turns=2, num_tokens=20, subscores={"right": 1.0}),
    episode("b", 1, 1.0, num_turns=4, num_tokens=20, subscores={"right": 1.0}),
    episode("c", 0, 0.25, family="g", first_tool_error=HOSTILE, ended="answered"),
    episode("c", 1, None, family="g"),
)


def report(run: EvaluatedRun = RUN) -> EvaluationReport:
    found = report_of(run)
    assert found is not None
    return found


def test_a_missing_episode_is_no_success_and_has_no_reward() -> None:
    overall = report().overall
    assert (overall.num_tasks, overall.num_planned, overall.num_graded) == (3, 6, 5)
    assert overall.success.value == 3 / 6
    assert overall.reward is not None
    assert overall.reward.value == 3.25 / 5
    assert [(one.name, one.num_tasks, one.success.value) for one in report().families] == [
        ("f", 2, 0.75), ("g", 1, 0.0)
    ]  # fmt: skip


def test_pass_at_k_is_a_mean_over_tasks() -> None:
    # Solved 1, 2, 0 of 2: at k = 2 at least one in tasks a and b, all in b alone.
    assert report().attempts == (AttemptScore(1, 0.5, 0.5), AttemptScore(2, 2 / 3, 1 / 3))


def test_only_whole_groups_can_have_spread() -> None:
    assert (report().num_groups, report().num_groups_with_spread) == (2, 1)


def test_subscores_turns_and_tokens_are_means_over_what_has_them() -> None:
    assert report().subscores == {"right": 0.75, "style": 0.5}
    assert report().mean_turns == 12 / 5
    assert report().mean_tokens == 20.0


def test_failures_that_ended_alike_are_one_with_an_example() -> None:
    again = evaluation(*RUN.episodes, episode("d", 0, 0.0, ended="out of turns"), episode("d", 1, 1.0))
    assert [(one.ended, one.count, one.example) for one in report(again).failures] == [
        ("out of turns", 2, "traj-a-1"), ("answered", 1, "traj-c-0")
    ]  # fmt: skip


def test_the_worst_are_of_different_tasks_and_none_that_succeeded() -> None:
    assert [one.trajectory_id for one in report().worst] == ["traj-a-1", "traj-c-0"]


def test_a_reward_outside_has_no_histogram_and_is_named() -> None:
    found = report(evaluation(episode("far", 0, 3.5), episode("near", 0, 0.5), group=1))
    assert (found.bins, found.bins_refused) == ((), "reward 3.5 of task far is outside 0 to 1")
    assert "no histogram: reward 3.5 of task far is outside 0 to 1" in list(report_lines(found, RUN))


def test_the_text_has_everything_and_moves_no_cursor() -> None:
    lines = list(report_lines(report(), RUN))
    text = "\n".join(lines)
    assert lines[0].startswith("95 % intervals, clustered by task: success 50.0% [")
    assert lines[1] == "per episode 2.4 turns, 20 tokens (80 in all); 12 s from submit to end"
    assert "pass@k, one of k succeeds  50.0%  66.7%" in lines
    assert "pass^k, all k succeed      50.0%  33.3%" in lines
    assert "rewards 0 ▄▁▄▁▁▁▁▁▁█ 1  (0–0.1: 1, 0.2–0.3: 1, 0.9–1: 3)" in lines
    assert "1 of 2 whole groups (50%) have spread at --group 2: only those would train" in lines
    assert "  0.000  a  upcycle trajectories show traj-a-1" in lines
    assert "without success: 2 graded episodes" in lines
    assert "gone lookup:" in text
    assert not {"\x1b", "\x07"} & set(text)


def test_one_task_is_no_result_of_others() -> None:
    lines = list(report_lines(report(evaluation(episode("a", 0, 1.0), group=1)), RUN))
    assert lines[0] == "95 % intervals, clustered by task: none, one task says nothing of others"


def test_a_run_without_episodes_or_grades_has_no_numbers() -> None:
    assert report_of(evaluation()) is None
    missing = report(evaluation(episode("a", 0, None), group=1))
    assert missing.overall.reward is None
    assert list(report_lines(missing, RUN)) == ["per episode 0.0 turns, – tokens; 12 s from submit to end"]


def test_a_file_of_json_lines_holds_the_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "eval.json"
    done = {"kind": "done", "evaluation": {**RUN.to_json(), "of_a_later_version": 1}}
    path.write_text(json.dumps({"kind": "launch"}) + "\n" + json.dumps(done) + "\n")
    assert evaluation_in(path) == RUN


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"kind": "launch"}\n',
            "no line `done` with an evaluation; give the output of .*, a trajectories.jsonl, or the id",
        ),
        ("success 5%\n", "eval.json:1: not JSON"),
        ('{"evaluation": {"run_id": "r"}}\n', "not an evaluation"),
    ],
)
def test_a_file_that_holds_none_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "eval.json"
    path.write_text(text)
    with pytest.raises(NoEvaluation, match=said):
        evaluation_in(path)
    with pytest.raises(NoEvaluation, match="cannot be read"):
        evaluation_in(tmp_path / "missing.json")


def body(*turns: pb.Turn, stop: "pb.StopReason.ValueType", answer: str = "") -> pb.TrajectoryBody:
    return pb.TrajectoryBody(turns=turns, stop_reason=stop, answer=answer)


def called(name: str, content: str = "", *, is_error: bool = False) -> pb.Turn:
    call = pb.ToolCall(call_id="1", name=name)
    return pb.Turn(
        tool_calls=[call], tool_results=[pb.ToolResult(call_id="1", content=content, is_error=is_error)]
    )


def test_the_first_error_of_a_tool_is_named_with_digits_alike() -> None:
    found = body(
        called("list"),
        called("read", "no file 17\nTraceback", is_error=True),
        called("read", "x", is_error=True),
        stop=pb.STOP_REASON_MAX_TURNS,
    )
    assert first_tool_error(found) == "read: no file #"
    assert first_tool_error(body(called("list"), stop=pb.STOP_REASON_ANSWERED)) == ""


def test_an_ending_says_why_and_what_was_last() -> None:
    unreadable = pb.Turn(parse_error="no closing tag")
    assert ending(body(called("read"), stop=pb.STOP_REASON_MAX_TURNS)) == "out of turns after read"
    assert ending(body(pb.Turn(), stop=pb.STOP_REASON_ANSWERED, answer="4")) == "answered"
    assert ending(body(pb.Turn(), stop=pb.STOP_REASON_ANSWERED)) == "answered with nothing"
    assert ending(body(unreadable, stop=pb.STOP_REASON_MAX_TOKENS)) == "out of tokens, last turn unreadable"
    assert ending(body(stop=pb.STOP_REASON_FAILED)) == "failed by the policy"


def test_tasks_without_a_solution_are_in_no_number_of_a_report_and_of_a_comparison() -> None:
    real = [episode("a", 0, 1.0), episode("a", 1, 0.0)]
    traps = [episode("x", n, 1.0, family=IMPOSSIBLE_FAMILY) for n in range(2)]
    plain, mixed = evaluation(*real), evaluation(*real, *traps)
    assert report_of(mixed) == report_of(plain)
    assert compare(plain, evaluation(*real)) == compare(mixed, mixed)
    assert report_of(evaluation(*traps)) is None
