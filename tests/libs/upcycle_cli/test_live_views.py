"""What `eval` and `train` show while they run: in a terminal, in a file, without colours."""

import asyncio
import io
import re
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tests.libs.upcycle_cli.planner import Planner, evaluation, serving
from tests.support.waiting import until

from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.cli.consoles import TextConsole
from upcycle.cli.eval_follower import follow_evaluation, progress_of
from upcycle.cli.eval_view import EvalCounts, EvalProgress, eval_view, frame_of, marks_of
from upcycle.cli.live_view import BoundedLines, PolledLines, live, one_row, redraws
from upcycle.cli.output import human, result_console, words_of
from upcycle.cli.why import why
from upcycle.errors import Unavailable
from upcycle.platform import Platform
from upcycle.results import Run
from upcycle.rpc import remote_errors

HOSTILE = "tea\x1b[31m\x1b]0;title\x07\r\nmilk"


def console(width: int = 80, height: int = 30, **options: Any) -> Console:
    """A terminal that keeps what it was sent."""
    file = io.StringIO()
    options = {"force_terminal": True, "highlight": False, "legacy_windows": False, **options}
    return Console(file=file, width=width, height=height, **options)


def text_of(console: Console) -> str:
    """What it was sent."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shown(progress: EvalProgress, width: int = 80, height: int = 30) -> list[str]:
    """The rows of a frame."""
    screen = console(width, height, force_terminal=False)
    screen.print(frame_of(progress, width, height))
    return text_of(screen).splitlines()


def progress(**fields: Any) -> EvalProgress:
    """Of six episodes, two of them graded."""
    return EvalProgress(
        **{
            "num_planned": 6,
            "num_graded": 2,
            "num_errors": 1,
            "reward": "0.500",
            "success": "50.0%",
            **fields,
        }
    )


def test_a_frame_has_counts_and_a_mark_for_each_attempt() -> None:
    attempts = marks_of(["tea", "milk"], 3, {("tea", 0): "●", ("tea", 2): "×", ("milk", 1): "○"})
    rows = shown(progress(attempts=attempts, phases={"in play": 2, "in grading": 0}))
    assert rows[1].strip() == "2/6 graded (33%) · reward 0.500 · success 50.0% · 1 error · 2 in play"
    assert [row.strip() for row in rows[2:]] == [
        "tea   ●·×",
        "milk  ·○·",
        "● success  ○ none  × error  · not yet",
    ]


@pytest.mark.parametrize(
    ("num_tasks", "group", "height", "marks"),
    [(20, 3, 30, 20), (20, 3, 24, 1), (60, 3, 30, 3), (700, 3, 30, 0), (2000, 2, 30, 0), (40, 1, 30, 1)],
)
def test_marks_are_shown_where_they_fit(num_tasks: int, group: int, height: int, marks: int) -> None:
    slugs = [f"t{number}" for number in range(num_tasks)]
    rows = shown(progress(attempts=marks_of(slugs, group, {})), 100, height)
    assert len([row for row in rows if "··" in row or re.fullmatch(r"[· ]+", row)]) == marks
    assert len(rows) <= height - 2
    assert max(map(len, rows)) <= 100


def test_names_of_tasks_cannot_act_on_the_terminal_and_rows_are_cut_not_wrapped() -> None:
    rows = shown(progress(attempts=marks_of([HOSTILE, "x" * 200], 2, {}), state=HOSTILE), 60)
    assert not re.search(r"[\x00-\x1f\x7f]", "".join(rows))
    assert len(rows) == 5
    assert max(map(len, rows)) <= 60


def test_the_last_frame_of_a_terminal_stays() -> None:
    screen = console()
    with eval_view(screen) as show:
        show(progress())
        show(progress(num_graded=6, num_errors=0))
    assert "6/6 graded (100%)" in text_of(screen)
    assert not text_of(screen).endswith("\x1b[2K")


def test_without_colours_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = console()
    with eval_view(screen) as show:
        show(progress(attempts={"tea": "●○×·", "milk": "●○×·"}))
    assert "●○×·" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text_of(screen))
    assert not re.findall(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", text_of(screen))


def test_a_file_gets_lines_though_colours_are_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert redraws(console())
    assert not redraws(console(force_terminal=False))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not redraws(console())
    assert not redraws(Console(file=io.StringIO(), _environ={"TERM": "dumb"}, force_terminal=True))


def test_no_text_sends_control_characters_and_our_own_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert isinstance(human(), TextConsole)
    assert isinstance(result_console(), TextConsole)
    out = TextConsole(file=io.StringIO(), force_terminal=True, color_system="standard", highlight=False)
    table = Table("name")
    table.add_row(HOSTILE)
    with live(out) as frame:
        out.print(HOSTILE, markup=False)
        out.print(Text(HOSTILE, style="bold"), table)
        frame.update(Text(HOSTILE))
    said = text_of(out)
    assert said.count("tea") == 4
    assert ("\x1b[31m" in said, "\x1b]0" in said, "\x07" in said) == (False, False, False)
    assert ("\x1b[1m" in said, "\x1b[?25h" in said) == (True, True)


async def test_why_shows_what_services_say_as_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planner = Explaining()  # type: ignore[abstract]
    planner.runs.append(evaluation("run-1"))
    async with serving(planner) as where:
        monkeypatch.setattr("upcycle.platform.find_addresses", lambda: where)
        assert await why("run-1") == 0
    said = capsys.readouterr().out
    assert "failed with [red]no[/red]" in said
    assert "\x1b" not in said


class Explaining(Planner):
    """Says of a run what its author wrote."""

    async def ExplainRun(self, request: Any, context: Any) -> pb.ExplainRunResponse:
        return pb.ExplainRunResponse(summary="failed with [red]no[/red] \x1b[31m")


async def test_lines_come_at_a_bounded_rate_unwrapped_and_the_newest_last() -> None:
    screen = console(width=20, force_terminal=False)
    lines = BoundedLines(screen, every_s=4.0)  # within it, the machine may pause
    for number in range(50):
        lines.show(f"{number} of 50 {'x' * 60} {HOSTILE}")
    assert text_of(screen).count("\n") == 1
    await until(lambda: "49 of 50" in text_of(screen))
    lines.show("the end")
    lines.close()
    printed = text_of(screen).splitlines()
    assert [line.split()[0] for line in printed] == ["0", "49", "the"]
    assert "\x1b" not in text_of(screen)


async def test_the_same_line_is_not_said_twice() -> None:
    screen = console(force_terminal=False)
    lines = BoundedLines(screen, every_s=0.0)
    for _ in range(3):
        lines.show("same")
        await until(lambda: lines._timer is None)
    lines.close()
    assert text_of(screen) == "same\n"


def test_lines_of_work_that_keeps_the_event_loop_busy_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("upcycle.cli.live_view.time.monotonic", lambda: now_s)
    screen = Console(file=io.StringIO(), width=80)
    lines, late = PolledLines(screen), PolledLines(screen, begins_at_once=False)
    for step in range(1, 9):
        lines.show(f"step {step}")
        late.show(f"late {step}")
        now_s += 0.7
    lines.close()
    lines.close()
    assert isinstance(screen.file, io.StringIO)
    assert screen.file.getvalue().split("\n") == [
        "step 1",
        "step 4",
        "late 4",
        "step 7",
        "late 7",
        "step 8",
        "",
    ]


def test_an_error_counts_as_no_success_and_not_in_the_mean() -> None:
    counts = EvalCounts()
    for reward, is_success, failure in ((1.0, True, ""), (0.5, False, ""), (0.0, False, "timeout")):
        counts.add(Run("tea", reward, is_success, "", "e", failure=failure))
    said = counts.progress(4, {})
    assert (said.num_graded, said.num_errors, said.reward, said.success) == (2, 1, "0.750", "33.3%")


def test_an_evaluation_of_the_platform_has_a_fixed_denominator() -> None:
    run = evaluation("run-1")
    run.spec.group_size = 2
    states = {"planned": 3, "sampled": 1, "evaluated": 2, "failed": 1}
    run.counts.CopyFrom(ts.RunCounts(requested=7, settled=3, by_state=states))
    run.state = ts.RUN_STATE_PAUSED
    said = progress_of(run, 5)
    assert (said.num_planned, said.num_graded, said.num_errors, said.state) == (10, 2, 1, "paused")
    assert said.phases == {"in play": 3, "in grading": 1}
    assert progress_of(run, 0).num_planned == 7


class WithTasks(Planner):
    """Its taskset has two tasks."""

    async def GetTaskset(self, request: Any, context: Any) -> pb.GetTasksetResponse:
        tasks = [ts.Task(slug="a"), ts.Task(slug="b")]
        return pb.GetTasksetResponse(taskset=ts.Taskset(name=request.name, tasks=tasks))


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_an_evaluation_is_followed_to_its_end(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    planner = WithTasks()  # type: ignore[abstract]
    for graded, state in ((0, ts.RUN_STATE_RUNNING), (1, ts.RUN_STATE_RUNNING), (3, ts.RUN_STATE_COMPLETED)):
        run = evaluation("run-1")
        run.state, run.spec.group_size, run.reward_mean = state, 2, 0.5
        run.counts.CopyFrom(ts.RunCounts(requested=graded, by_state={"evaluated": graded, "failed": 1}))
        planner.watched.append(run)
    graded_status, failed = ts.EPISODE_STATUS_GRADED, ts.EPISODE_STATUS_FAILED
    planner.results = [
        ts.EpisodeResult(task_slug="a", member=0, status=graded_status, success=True),
        ts.EpisodeResult(task_slug="a", member=1, status=failed),
        ts.EpisodeResult(task_slug="b", member=1, status=graded_status),
    ]
    screen = console(force_terminal=is_terminal)
    monkeypatch.setattr("upcycle.cli.eval_follower.human", lambda: screen)
    async with serving(planner) as where, Platform(where) as platform:
        run = await follow_evaluation(platform, "run-1", timeout_s=60)
    assert run.state == ts.RUN_STATE_COMPLETED
    last = text_of(screen).rstrip().splitlines()
    assert any("completed · 3/4 graded (75%) · reward 0.500" in line for line in last[-6:])
    if is_terminal:
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text_of(screen))
        assert ("a  ●×" in plain, "b  ·○" in plain) == (True, True)
    else:
        assert len(last) <= 3
        assert "\x1b" not in text_of(screen)


class Silent(Planner):
    """Answers nothing about runs."""

    async def GetRun(self, request: Any, context: Any) -> pb.GetRunResponse:
        await asyncio.sleep(600)
        return pb.GetRunResponse()


async def test_words_of_the_wire_are_not_shown() -> None:
    planner = Silent()  # type: ignore[abstract]
    async with serving(planner) as where, Platform(where) as platform:
        with pytest.raises(Unavailable) as late, remote_errors("read run-1"):
            await platform.tasksets.GetRun(pb.GetRunRequest(run_id="run-1"), timeout=0.1)
    assert "DEADLINE_EXCEEDED" in str(late.value)
    assert words_of(late.value) == "read run-1: no answer in time"
    assert one_row(HOSTILE) == "tea\ufffd[31m\ufffd]0;title\ufffd milk"
