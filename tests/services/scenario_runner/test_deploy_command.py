"""`upcycle deploy` against the running service, up to a run of what was sent."""

import json
import shutil
from pathlib import Path

import pytest
from tests.services.scenario_runner.conftest import Start
from tests.services.scenario_runner.fleets import ENVIRONMENTS
from tests.services.scenario_runner.support import finished, play_to_grade, run_spec, sampling, submit
from tests.services.scenario_runner.test_deploying import KEY, KEYS
from tests.support.command_line import CommandLine

from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.environment.source_files import source_digest


def write_project(folder: Path) -> str:
    """An environment outside of every root, and two tasks; its source digest."""
    shutil.copy(ENVIRONMENTS / "arith.py", folder / "env.py")
    rows = [{"slug": f"t{n}", "scenario": "sum", "args": {"a": 1, "b": n}} for n in range(2)]
    header = {
        "name": "sums",
        "split": "train",
        "environment": {"name": "arith", "path": str(folder / "env.py")},
    }
    (folder / "tasks.json").write_text(json.dumps({**header, "tasks": rows}))
    return source_digest(folder / "env.py")


@pytest.fixture
def project(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    folder = tmp_path_factory.mktemp("project")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("UPCYCLE_PROFILE", "")
    return folder


async def test_a_sent_environment_plays_though_its_file_is_gone(
    start_runner: Start, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = write_project(project)
    runner = await start_runner(access=KEYS)
    upcycle = CommandLine(capsys, {"tasksets": runner.address})
    monkeypatch.setenv("UPCYCLE_OPERATOR_KEY", KEY)
    refused = await upcycle("sync", "tasks", "tasks.json", "sums")
    assert "is outside the allowed roots" in refused.err  # without it this test would show nothing
    sent = await upcycle("deploy")
    assert (sent.status, sent.err) == (0, "")
    assert sent.out.startswith(f"deployed arith: source {digest}, 1 file, ")
    assert f'"path": "deployed:{digest}"' in sent.out
    assert f"upcycle sync tasks tasks.json NAME --deployed {digest}\n" in sent.out
    synced = await upcycle("sync", "tasks", "tasks.json", "sums", "--deployed", digest)
    assert (synced.status, synced.err) == (0, "")
    monkeypatch.chdir(project.parent)
    above = await upcycle("deploy", project.name)
    assert f"upcycle sync tasks {project.name}/tasks.json NAME --deployed {digest}\n" in above.out
    monkeypatch.chdir(project)
    again = await upcycle("sync", "tasks", "tasks.json", "sums", "--deployed", digest)
    assert "sums@1 is the same" in again.out
    (project / "env.py").unlink()
    run = await submit(runner, run_spec())
    async with sampling(runner, lambda request: play_to_grade(runner, request)):
        done = await finished(runner, run.run_id)
    assert done.run.state == taskset_pb2.RUN_STATE_COMPLETED
    assert done.run.source_digest == digest


async def test_an_evaluation_names_the_sent_environment_itself(
    start_runner: Start, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = write_project(project)
    runner = await start_runner(access=KEYS)
    upcycle = CommandLine(capsys, {"tasksets": runner.address})
    monkeypatch.setenv("UPCYCLE_OPERATOR_KEY", KEY)
    assert (await upcycle("deploy", "--json")).status == 0
    command = ("eval", "tasks.json", "incident", "--deployed", digest, "--first", "--detach", "--json")
    begun = await upcycle(*command)
    assert begun.status == 0, begun.err
    run = json.loads(begun.out.splitlines()[0])
    assert run["source_digest"] == digest
    async with sampling(runner, lambda request: play_to_grade(runner, request)):
        done = await finished(runner, run["run_id"])
    assert [row.task_slug for row in done.results] == ["t0"]


async def test_a_registered_taskset_and_an_agent_of_others_take_no_deployed_environment(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = write_project(project)
    upcycle = CommandLine(capsys, {})
    for arguments, says in (
        (("sums", "incident", "--deployed", digest), "'sums' is registered: it has its environment already"),
        (("tasks.json", "incident", "--deployed", "latest"), "'latest' names no deployed environment"),
        (("tasks.json", "claude", "--deployed", digest), "--deployed is for models that the platform plays"),
    ):
        said = await upcycle("eval", *arguments)
        assert (said.status, says in said.err) == (2, True), said.err


async def test_a_key_that_is_missing_or_another_one_is_refused_by_name(
    start_runner: Start, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(project)
    runner = await start_runner(access=KEYS)
    upcycle = CommandLine(capsys, {"tasksets": runner.address})
    missing = await upcycle("deploy")
    assert missing.status == 2
    assert "needs a key that the server knows" in missing.err
    assert "UPCYCLE_OPERATOR_KEY" in missing.err
    monkeypatch.setenv("UPCYCLE_OPERATOR_KEY", "a-guess")
    wrong = await upcycle("deploy", "--json")
    assert wrong.status == 2
    assert "needs a key that the server knows" in wrong.err
    assert "UPCYCLE_OPERATOR_KEY, or operator.key" in wrong.err
    assert "a-guess" not in wrong.err + wrong.out


async def test_what_the_platform_cannot_load_is_refused_with_the_reason(
    start_runner: Start, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It imports here, and its pack does not: a module that is found by a name which only running tells."""
    write_project(project)
    (project / "hidden_plugin.py").write_text("X = 1\n")
    with (project / "env.py").open("a") as file:
        file.write("\nimport importlib\n\nimportlib.import_module('hidden' + '_plugin')\n")
    runner = await start_runner(access=KEYS)
    monkeypatch.setenv("UPCYCLE_OPERATOR_KEY", KEY)
    said = await CommandLine(capsys, {"tasksets": runner.address})("deploy")
    assert said.status == 2
    assert "environment cannot be loaded from its pack" in said.err
    assert "No module named 'hidden_plugin'" in said.err
