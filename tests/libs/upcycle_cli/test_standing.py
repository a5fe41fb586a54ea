"""The file of a standing run: what is refused before anything starts, and when a run is begun again."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.libs.upcycle_cli.planner import Planner, serving

from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.cli.standing import StandingInvalid, keep, read
from upcycle.platform import Platform
from upcycle.run_config import RunConfigInvalid
from upcycle.run_config.wire import spec_to_wire

UPCYCLE = Path(sys.executable).parent / "upcycle"
WHOLE = """
taskset = "sums"  # a comment is no content
source_runs = ["run-a", "run-b"]
no_sampling = true
policy.model = "m"
training.steps = 12
training.learning_rate = 1
sampling.max_turns = 3
gate.taskset = "judge"
"""
HEAD = 'taskset = "sums"\npolicy.model = "m"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_a_file_asks_for_what_the_flags_ask_for(tmp_path: Path) -> None:
    spec = spec_to_wire(read(write(tmp_path, WHOLE)).run.run)
    assert (spec.policy.model, spec.taskset, spec.no_sampling) == ("m", "sums", True)
    assert list(spec.source_runs) == ["run-a", "run-b"]
    assert (spec.training.steps, spec.training.learning_rate, spec.sampling.max_turns) == (12, 1.0, 3)
    assert (spec.gate.taskset, spec.gate.attempts, spec.group_size) == ("judge", 16, 8)
    endless = read(write(tmp_path, HEAD)).run.training
    assert endless is not None
    assert endless.is_standing
    passes = read(write(tmp_path, HEAD + "training.epochs = 2\n")).run.training
    assert passes is not None
    assert not passes.is_standing


def test_the_request_id_is_of_the_content_alone(tmp_path: Path) -> None:
    first = read(write(tmp_path, WHOLE))
    lines = WHOLE.splitlines()
    turned = read(write(tmp_path, "\n".join(["# another comment", *reversed(lines)])))
    assert turned.request_id(1) == first.request_id(1)
    assert first.request_id(2) != first.request_id(1)
    other = read(write(tmp_path, WHOLE.replace("max_turns = 3", "max_turns = 4")))
    assert other.request_id(1) != first.request_id(1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('taskset = "sums"\npolicy.model = m\n', "run.toml:2 is not TOML"),
        ('[run]\nmodel = "m"\n', "run (run.toml:1): unknown key 'run'"),
        ("", "taskset is not set"),
        ('taskset = "sums"\n', "policy is not set"),
        ('policy.model = "m"\n', "taskset is not set"),
        (HEAD + "training.learning_rat = 1.0\n", "(run.toml:3): unknown key 'learning_rat'; did you mean"),
        (HEAD + "learning_rate = 1.0\n", "did you mean 'training.learning_rate'?"),
        (HEAD + "zzz = 1\n", "known: against_version, draws, episode_deadline_s"),
        (HEAD + 'training.steps = "3"\n', "training.steps (run.toml:3) = '3' is not a whole number"),
        (HEAD + "training.steps = true\n", "= True is not a whole number"),
        (HEAD + "no_sampling = 1\n", "no_sampling (run.toml:3) = 1 is not true or false"),
        (HEAD + "group_size = 1\n", "group_size (run.toml:3) must be >= 2"),
        ('taskset = "sums"\npolicy.model = 3\n', "policy.model (run.toml:2) = 3 is not text"),
        (HEAD + 'source_runs = "run-a"\n', "is not a list"),
        (HEAD + 'source_runs = ["last"]\n', "name the run by its id"),
        ('taskset = "absent.py"\npolicy.model = "m"\n', "absent.py"),
        (HEAD + 'purpose = "eval"\n', "purpose (run.toml:3) is 'eval'"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_file(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises((RunConfigInvalid, StandingInvalid)) as refused:
        read(path)
    assert said in str(refused.value).replace(f"{tmp_path}/", "")


def test_up_starts_nothing_for_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    write(tmp_path, HEAD + "training.stepz = 3\n")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("UPCYCLE_")}

    def up(*options: str) -> subprocess.CompletedProcess[str]:
        command = [str(UPCYCLE), "up", "--standing", *options]
        return subprocess.run(
            command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=60, check=False
        )

    done = up("run.toml")
    assert (done.returncode, "did you mean 'steps'?" in done.stderr) == (2, True), done.stderr
    assert up("absent.toml").returncode == 2
    write(tmp_path, WHOLE)
    done = up("run.toml", "--model", "other")
    assert (done.returncode, "the engines serve --model other" in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / ".upcycle").exists()


class History(Planner):
    """Every run that is submitted ends at once as `ending`, after so many seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.ending, self.after_s, self.trained = ts.RUN_STATE_FAILED, 5, 0
        self.known: dict[str, ts.Run] = {}

    async def ListRuns(self, request: Any, context: Any) -> pb.ListRunsResponse:
        newest = list(reversed(self.known.values()))
        return pb.ListRunsResponse(runs=newest[: request.limit or None])

    async def SubmitRun(self, request: Any, context: Any) -> pb.SubmitRunResponse:
        self.submitted.append(request)
        if request.request_id not in self.known:
            run = ts.Run(run_id=f"run-{len(self.known) + 1}", spec=request.spec, state=ts.RUN_STATE_RUNNING)
            self.known[request.request_id] = run
        run = self.known[request.request_id]
        if run.spec != request.spec:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, f"belongs to {run.run_id} with another spec")
        return pb.SubmitRunResponse(run=run)

    def end_all(self) -> None:
        for run in self.known.values():
            if run.state == ts.RUN_STATE_RUNNING:
                run.state, run.failure = self.ending, "broken_artifact: no weights"
                run.submitted_at.FromSeconds(1_000)
                run.finished_at.FromSeconds(1_000 + self.after_s)
                if self.trained:
                    run.sources.add(run_id="run-a", groups=9, trained=self.trained)


@pytest.fixture
async def history() -> AsyncIterator[tuple[History, Platform]]:
    """A planner with a memory, and a client of it."""
    planner = History()  # type: ignore[abstract]
    async with serving(planner) as addresses, Platform(addresses) as platform:
        yield planner, platform


async def begun(history: tuple[History, Platform], path: Path, times: int) -> list[str]:
    """What is said at each start of a platform whose run ends before the next."""
    lines = []
    for _ in range(times):
        (line,) = await keep(history[1], read(path))
        lines.append(line)
        history[0].end_all()
    return lines


async def test_a_run_that_fails_at_once_is_begun_three_times(
    history: tuple[History, Platform], tmp_path: Path
) -> None:
    path = write(tmp_path, WHOLE)
    *first, last, again = await begun(history, path, 5)
    assert [line.split()[2] for line in first] == ["run-1", "run-2", "run-3"]
    assert last == again
    assert "failed 3 times in a row within 60 s" in last
    assert "last as run-3: broken_artifact: no weights" in last
    assert len(history[0].known) == 3
    (line,) = await keep(history[1], read(write(tmp_path, WHOLE + "training.seed = 2\n")))
    assert "standing run run-4 " in line


@pytest.mark.parametrize(
    ("ending", "after_s"),
    [(ts.RUN_STATE_FAILED, 61), (ts.RUN_STATE_COMPLETED, 1), (ts.RUN_STATE_CANCELLED, 1)],
)
async def test_a_run_that_lasted_or_was_ended_is_begun_again(
    history: tuple[History, Platform], tmp_path: Path, ending: "ts.RunState.ValueType", after_s: int
) -> None:
    history[0].ending, history[0].after_s = ending, after_s
    lines = await begun(history, write(tmp_path, WHOLE), 5)
    assert [line.split()[2] for line in lines] == [f"run-{number}" for number in range(1, 6)]


async def test_sources_that_trained_are_the_first_batches_once(
    history: tuple[History, Platform], tmp_path: Path
) -> None:
    path, planner = write(tmp_path, WHOLE), history[0]
    planner.ending = ts.RUN_STATE_COMPLETED
    await begun(history, path, 2)
    planner.trained = 4
    await begun(history, path, 3)
    sources = [list(run.spec.source_runs) for run in planner.known.values()]
    assert sources == [["run-a", "run-b"]] * 3 + [[]] * 2


async def test_a_start_submits_one_run_however_many_there_were(
    history: tuple[History, Platform], tmp_path: Path
) -> None:
    path, planner = write(tmp_path, WHOLE), history[0]
    planner.ending = ts.RUN_STATE_COMPLETED
    lines = await begun(history, path, 60)
    assert "standing run run-60 " in lines[-1]
    assert len(planner.submitted) == 60
    for _ in range(2):  # at the second start it goes: nothing is submitted
        (line,) = await keep(history[1], read(path))
        assert "standing run run-61 " in line
    assert len(planner.submitted) == 61


async def test_a_standing_run_of_recorded_sessions_is_about_no_tasks(
    history: tuple[History, Platform], tmp_path: Path
) -> None:
    sessions = 'policy.model = "m"\nsessions = "group=live"\nsessions_idle_s = 3600\n'
    (line,) = await keep(history[1], read(write(tmp_path, sessions)))
    assert "trains m on recorded sessions (group=live) until it is stopped" in line
    spec = history[0].submitted[0].spec
    assert (spec.taskset, spec.no_sampling, spec.sessions_idle_s) == ("", True, 3600)
    assert spec.training.steps == 0


async def test_a_run_that_an_earlier_version_submitted_otherwise_is_passed_over(
    history: tuple[History, Platform], tmp_path: Path
) -> None:
    standing = read(write(tmp_path, WHOLE))
    history[0].known[standing.request_id(1)] = ts.Run(run_id="run-old", state=ts.RUN_STATE_COMPLETED)
    (line,) = await keep(history[1], standing)
    assert "standing run run-2 " in line
