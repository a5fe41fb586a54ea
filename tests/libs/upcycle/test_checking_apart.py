"""`upcycle check` outlives what it plays, and shows what that printed."""

import asyncio
import gc
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from upcycle import checking_apart
from upcycle.cli.main import run

FILE = """
import os, signal, sys
from upcycle import Environment
from upcycle.scenario import Reference
from upcycle.tasks import Taskset

env = Environment("leaving")
{declared}

@env.scenario("ask")
async def ask(number: int):
    answer = yield f"Which number comes after {{number}}?"
    {grading}
    yield float(answer == str(number + 1))

@ask.gold
def right(number: int) -> Reference:
    return Reference(str(number + 1))

tasks = Taskset("leaving", [ask.task(slug=f"of-{{number}}", number=number) for number in range(3)])
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def check(grading: str, declared: str = "", *flags: str) -> int:
    Path("tasks.py").write_text(FILE.format(grading=grading, declared=declared))
    return run(["check", "tasks.py", *flags])


@pytest.mark.parametrize(
    ("ending", "how"),
    [("os._exit(3)", "exit status 3"), ("os.kill(os.getpid(), signal.SIGKILL)", "signal SIGKILL")],
)
def test_a_grader_that_ends_its_process_is_a_finding_with_what_it_printed(
    ending: str, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert check(f'print("all good so far"); os.write(2, b"now"); {ending}') == 1
    lines = capfd.readouterr().out.splitlines()
    assert lines == [
        "leaving: 1 of 3 tasks (stopped: a play ended its process), 1 play, no gold answer graded, spread 0",
        f"  raises: of-0: gold ('1'): it ended its process, with {how}",
        "    | all good so far",
        "    | now",
    ]


def test_a_tool_that_ends_its_process_is_a_finding(capfd: pytest.CaptureFixture[str]) -> None:
    tool = '@env.tool()\ndef look() -> str:\n    """Look."""\n    os._exit(0)\n'
    assert check("", tool) == 1
    said = (
        "raises: of-0: its prompt, and its tools called for nothing: it ended its process, with exit status 0"
    )
    assert said in capfd.readouterr().out


def test_an_environment_that_ends_its_process_before_the_first_play_is_refused(
    capfd: pytest.CaptureFixture[str],
) -> None:
    begin = '@env.initialize\nasync def begin():\n    print("no license")\n    os._exit(7)\n'
    assert check("", begin) == 2
    said = capfd.readouterr().err
    assert "the check ended before its first play, with exit status 7; it printed:\nno license" in said


def test_an_environment_that_is_never_ready_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checking_apart, "_BEGIN_S", 6.0)
    monkeypatch.setattr(checking_apart, "_END_S", 0.5)
    begin = '@env.initialize\nasync def begin():\n    print("asks its server")\n    await asyncio.sleep(50)\n'
    assert check("", f"import asyncio\n{begin}") == 2
    said = capfd.readouterr().err
    assert "no play began within 6 s: importing or initialising the environment does not end" in said
    assert "it printed:\nasks its server" in said


def test_what_a_play_prints_stands_under_its_finding_and_nowhere_else(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert check('print("grading", len(answer)); assert number != 1 or answer', "", "--json") == 1
    printed = capfd.readouterr()
    (finding,) = json.loads(printed.out)["findings"]
    assert (finding["task"], finding["printed"]) == ("of-1", "grading 0")
    assert "grading" not in printed.err


def test_only_the_end_of_a_long_output_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    assert check('print("x" * 100_000, "the end"); assert number != 1', "", "--json") == 1
    findings = json.loads(capfd.readouterr().out)["findings"]
    shown = findings[0]["printed"]
    assert (shown[0], len(shown), shown[-7:]) == ("…", 501, "the end")


def test_a_play_that_nothing_interrupts_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its own deadline is a signal, which a stopped process does not see."""
    monkeypatch.setattr(checking_apart, "_SILENT_S", -57.0)
    monkeypatch.setattr(checking_apart, "_END_S", 0.5)
    assert check('print("stops"); os.kill(os.getpid(), signal.SIGSTOP)') == 1
    said = capfd.readouterr().out
    assert "1 of 3 tasks (stopped: a play did not end)" in said
    assert (
        "raises: of-0: gold ('1'): its process lives and says nothing any more; a play may take 60 s" in said
    )
    assert "| stops" in said


def test_what_a_play_started_ends_with_the_check(capfd: pytest.CaptureFixture[str]) -> None:
    grading = 'assert False, "started " + str(subprocess.Popen(["sleep", "50"]).pid) + "."'
    assert check(grading, "import subprocess", "--limit", "1", "--json") == 1
    finding, *_ = json.loads(capfd.readouterr().out)["findings"]
    started = int(finding["detail"].partition("started ")[2].partition(".")[0])
    wait_for(lambda: not is_running(started))


def test_a_grader_that_empties_the_folder_of_temporary_files_loses_no_finding(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files = f'__import__("pathlib").Path({str(tmp_path)!r}).iterdir()'
    empties = f"[one.unlink() for one in {files} if one.is_file() and not one.suffix]"
    assert check(f"{empties}; assert number != 1") == 1
    assert "raises: of-1: gold ('2')" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ((signal.SIGINT,), 130),
        ((signal.SIGINT, signal.SIGINT), 130),
        ((signal.SIGTERM,), -signal.SIGTERM),
        ((signal.SIGKILL,), -signal.SIGKILL),
    ],
)
def test_a_check_that_is_ended_leaves_no_process(numbers: tuple[signal.Signals, ...], status: int) -> None:
    grading = 'Path("pid").write_text(str(os.getpid())); os.rename("pid", "playing"); time.sleep(50)'
    Path("tasks.py").write_text(
        FILE.format(grading=grading, declared="import time\nfrom pathlib import Path")
    )
    # What is started in the background of a shell ignores SIGINT, and so would what it starts.
    reacts = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{reacts}\nimport sys; from upcycle.cli.main import run; sys.exit(run(sys.argv[1:]))"
    command = subprocess.Popen([sys.executable, "-c", program, "check", "tasks.py"])
    wait_for(Path("playing").exists)
    playing = int(Path("playing").read_text())
    for number in numbers:
        command.send_signal(number)
        time.sleep(0.5)
    assert command.wait(30) == status
    wait_for(lambda: not is_running(playing))


def wait_for(is_so: Callable[[], bool], within_s: float = 30.0) -> None:
    until_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """False for one that ended and was not waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


COLLECTING = """
import gc
from upcycle import Environment, Taskset
from upcycle.scenario import Reference

env = Environment("collecting")


@env.scenario("ask")
async def ask():
    gc.collect()
    answer = yield "Say 4."
    yield 1.0 if answer == "4" else 0.0


@ask.gold
def gold():
    return Reference(answer="4")


TASKS = Taskset("collecting", [ask.task(slug="ask")])
"""


async def _leave_a_channel_as_garbage() -> None:
    kept: list[object] = [grpc.aio.insecure_channel("127.0.0.1:1")]
    kept.append(kept)


def test_a_channel_that_is_garbage_here_does_not_stop_the_process_that_plays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = tmp_path / "tasks.py"
    tasks.write_text(COLLECTING)
    gc.disable()
    try:
        asyncio.run(_leave_a_channel_as_garbage())
        assert run(["check", str(tasks), "--timeout-s", "20"]) == 0, capsys.readouterr().out
    finally:
        gc.enable()
        gc.collect()
    assert "nothing found" in capsys.readouterr().out
