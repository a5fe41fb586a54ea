"""The command line as its user meets it: exit statuses, output streams, addresses."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from grpc import StatusCode
from rich.table import Table

from local_stack.supervisor import AlreadyRunning
from upcycle.api.registry.v1.registry_pb2 import Model
from upcycle.api.registry.v1.service_pb2 import GetModelResponse
from upcycle.cli import train
from upcycle.cli.exits import Exit
from upcycle.cli.main import run
from upcycle.cli.output import fail, result_console
from upcycle.cli.tasksets import AmbiguousTaskset, load_source
from upcycle.errors import Unavailable, UpcycleError
from upcycle.platform import PEERS, Platform, PlatformNotFound, find_addresses
from upcycle.rpc import RemoteConflict, RemoteRefused

UPCYCLE = Path(sys.executable).parent / "upcycle"


def upcycle(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The installed command, in a folder where nothing runs."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("UPCYCLE_")}
    command = [str(UPCYCLE), *arguments]
    return subprocess.run(
        command, cwd=cwd, env={**clean, **env}, capture_output=True, text=True, timeout=60, check=False
    )


def test_help_lists_commands_and_exit_statuses_on_stdout(tmp_path: Path) -> None:
    done = upcycle("--help", cwd=tmp_path)
    assert done.returncode == 0
    for word in ("demo", "eval", "train", "why", "doctor", "Exit status"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("command", "said"), [("train", "slug of the model"), ("train", "optimizer steps"), ("runs", "or last")]
)
def test_help_of_a_command_explains_its_arguments(tmp_path: Path, command: str, said: str) -> None:
    assert said in upcycle(command, "--help", cwd=tmp_path, COLUMNS="200").stdout


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("runs", "A paused run dispatches nothing new until it is resumed"),
        ("models create", "It knows nothing: train it on demonstrations first"),
        ("check", "Exit status 1 when something is found."),
    ],
)
def test_help_of_a_command_is_the_whole_docstring(tmp_path: Path, command: str, said: str) -> None:
    shown = upcycle(*command.split(), "--help", cwd=tmp_path, COLUMNS="200").stdout
    assert said in " ".join(shown.split())


def test_the_list_of_commands_needs_no_parser_of_markdown_and_breaks_lines_where_the_terminal_ends(
    tmp_path: Path,
) -> None:
    program = (
        "import sys; from upcycle.cli.main import run; run(['--help'])\n"
        "sys.exit(', '.join({'markdown_it', 'pygments', 'asyncio', 'grpc'} & sys.modules.keys()) or 0)"
    )
    env = {**os.environ, "COLUMNS": "400"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Exit status: 0 done")]
    assert line.rstrip().endswith("130 interrupted.")


def test_a_misspelt_command_is_a_usage_error_that_names_the_nearest(tmp_path: Path) -> None:
    done = upcycle("wyh", cwd=tmp_path)
    assert done.returncode == 2
    assert '"why"' in done.stdout + done.stderr


def test_an_unknown_flag_is_a_usage_error(tmp_path: Path) -> None:
    assert upcycle("runs", "--limmit", "3", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("eval --groupp 3", "Unknown option: --groupp. Did you mean --group?"),
        (
            "tasksets import a.csv --environment e.py --scenario s -o t.json --split heldout",
            'Invalid value "heldout" for --split. Choose from: "train", "held_out", "audit", "unassigned". '
            'Did you mean "held_out"?',
        ),
    ],
)
def test_a_command_that_cannot_be_read_is_one_line_that_no_pipe_wraps(
    tmp_path: Path, line: str, said: str
) -> None:
    done = upcycle(*line.split(), cwd=tmp_path, COLUMNS="40")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"upcycle: {said}\n")
    (row,) = upcycle(*line.split(), "--json", cwd=tmp_path).stdout.splitlines()
    assert json.loads(row)["error"] == {"kind": "usage", "message": said}


def test_without_a_platform_the_status_is_4_and_stdout_stays_empty(tmp_path: Path) -> None:
    done = upcycle("runs", cwd=tmp_path)
    assert done.returncode == 4
    assert done.stdout == ""
    assert "upcycle up" in done.stderr


@pytest.mark.parametrize("command", ["runs", "why", "trajectories show last", "models head m"])
def test_a_service_that_does_not_listen_is_named_with_its_address_and_setting(
    tmp_path: Path, command: str
) -> None:
    peers = {f"UPCYCLE_PEERS_{peer.upper()}": "127.0.0.1:1" for peer in PEERS}
    done = upcycle(*command.split(), cwd=tmp_path, **peers)
    assert done.returncode == 4
    said = "scenario_runner does not answer at 127.0.0.1:1 (UPCYCLE_PEERS_TASKSETS); is `upcycle up` running?"
    assert done.stderr == f"upcycle: {said}\n"


def test_what_a_service_refuses_begins_with_what_was_called_or_with_its_status() -> None:
    assert str(RemoteConflict("", StatusCode.ABORTED, "HEAD_MOVED", "x")) == "ABORTED HEAD_MOVED: x"
    assert str(RemoteConflict("set", StatusCode.ABORTED, "HEAD_MOVED", "x")) == "set: ABORTED HEAD_MOVED: x"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("# stock\n\nopen('nowhere.json')\n", "3: FileNotFoundError: [Errno 2] No such file"),
        ("import json\njson.loads('{')\n", "2: JSONDecodeError: "),
        ("\nx = = 3\n", "2: SyntaxError: invalid syntax"),
    ],
)
def test_what_a_users_file_raises_is_one_line_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], body: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raises.py").write_text(body)
    (tmp_path / "tasks.py").write_text("import raises\n")
    monkeypatch.delitem(sys.modules, "raises", raising=False)
    assert run(["eval", "tasks.py", "m", "--dry-run"]) == Exit.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"upcycle: raises.py:{said}")


def test_of_several_tasksets_train_names_its_own_flag_and_those_that_may_train(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(
        "from upcycle.tasks import EnvironmentRef, Task, Taskset\n"
        "where = EnvironmentRef('env', 'env.py')\n"
        "a = Taskset('a', [Task(where, 's', slug='x')])\n"
        "b = Taskset('b', [Task(where, 's', slug='y')], 'held_out')\n"
    )
    for trains, said in ((True, "--taskset-name a"), (False, "--taskset-name a | b")):
        with pytest.raises(AmbiguousTaskset) as refused:
            load_source(str(tmp_path / "two.py"), trains=trains)
        assert refused.value.hint == f"name one: {said}"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("eval nope.py m", "no such file: nope.py; "),
        ("train m --taskset nope.jsonl", "no such file: nope.jsonl; "),
        ("train m --sft nope.jsonl", "nope.jsonl: no such file; give a JSONL file of conversations"),
    ],
)
def test_a_file_that_is_missing_is_a_usage_error_also_without_a_platform(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(command.split()) == Exit.USAGE
    assert capsys.readouterr().err.startswith(f"upcycle: {said}")


def test_a_file_without_a_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text('taskset = "sums"\n')
    assert run(["train", "--config", str(tmp_path / "run.toml")]) == Exit.USAGE
    assert "run.toml: policy.model is missing" in capsys.readouterr().err


def test_a_negative_age_is_refused_in_the_words_of_any_other_age(tmp_path: Path) -> None:
    for given in (["--older-than", "-3d"], ["--older-than=-3d"]):
        done = upcycle("retention", *given, cwd=tmp_path)
        assert done.returncode == 2
        assert "--older-than is '-3d', expected an age of at least one day" in done.stderr


def test_a_number_of_a_dead_letter_that_is_none_is_a_usage_error_that_names_it(tmp_path: Path) -> None:
    done = upcycle("bus", "dead", "show", "abc", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "upcycle: NUMBER is 'abc'; it takes a whole number\n"


def test_json_errors_are_one_line_on_stdout(tmp_path: Path) -> None:
    done = upcycle("runs", "--json", cwd=tmp_path)
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["error"]["kind"] == "platform_not_found"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--group 1", "--group must be >= 2 and <= 1024, got 1"),
        ("--loss ppoo", "--loss 'ppoo' does not exist; did you mean 'ppo'?"),
        ("--loss cross_entropy", "upcycle train --sft"),
        ("--steps -1", "--steps must be >= 0"),
        ("--steps 0 --lr-schedule linear", "--lr-schedule 'linear' falls over the steps of a run"),
        ("--steps 3 --warmup-steps 3", "--warmup-steps must be >= 0 and below --steps (3), got 3"),
        ("--lr-schedule constant --min-lr-fraction 0.5", "set --lr-schedule to cosine or linear"),
        ("--prompts 257", "--prompts * --group is 2056, limit 2048"),
        ("--checkpoint-every 0 --max-staleness -1", "--checkpoint-every must be >= 1"),
        ("--learning-rate nan", "--learning-rate must be > 0 and <= 10, got nan"),
        ("--lora-rank -2", "--lora-rank must be >= 0"),
        ("--gate held --gate-attempts 0", "--gate-attempts must be >= 1"),
    ],
)
def test_what_cannot_train_is_refused_before_anything_is_sent(tmp_path: Path, flags: str, said: str) -> None:
    done = upcycle("train", "m", "--taskset", "t", *flags.split(), cwd=tmp_path)  # no platform: 4 if it asks
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (StatusCode.INVALID_ARGUMENT, Exit.USAGE),
        (StatusCode.FAILED_PRECONDITION, Exit.FAILED),
        (StatusCode.NOT_FOUND, Exit.USAGE),
        (StatusCode.UNAVAILABLE, Exit.UNREACHABLE),
    ],
)
def test_what_a_service_refuses_as_wrong_is_a_usage_error(
    code: StatusCode, status: Exit, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = RemoteRefused("submit", code, "INVALID_REQUEST", "spec.training.loss 'ppoo'")
    assert fail(Unavailable(str(refusal)) if status is Exit.UNREACHABLE else refusal) == status
    assert "spec.training.loss 'ppoo'" in capsys.readouterr().err


def test_a_refusal_is_the_services_sentence_without_words_of_the_wire(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = "model 'm' exists with weights 0123; choose another slug"
    assert fail(RemoteConflict("call", StatusCode.ALREADY_EXISTS, "MODEL_EXISTS", said)) == Exit.FAILED
    assert capsys.readouterr().err == f"upcycle: {said}\n"


def test_a_second_platform_on_the_same_data_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(AlreadyRunning("a platform already runs in x, as process 7", "stop it first")) == Exit.USAGE
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("size", "--json"), ("train", "--help")])
def test_output_that_is_read_no_further_ends_the_command_quietly(arguments: tuple[str, ...]) -> None:
    command = subprocess.Popen([UPCYCLE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert command.stdout is not None
    command.stdout.close()  # as `head` does
    assert command.stderr is not None
    said = command.stderr.read()
    assert (command.wait(60), said) == (0, b"")


def test_an_argument_too_many_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "list", "many", "m"]) == Exit.USAGE
    said = "upcycle: 'many', 'm': more arguments than it has; `upcycle models list --help` names them\n"
    assert capsys.readouterr().err == said


def test_a_row_of_a_table_that_is_piped_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("reason", box=None)
    table.add_row("because " * 60)
    result_console().print(table)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["reason", "because"]


async def test_a_checkpoint_that_was_promoted_and_rolled_back_is_not_called_unpromoted() -> None:
    class Registry:
        async def GetModel(self, request: object, timeout: float) -> GetModelResponse:
            return GetModelResponse(model=Model(head_version=5, newest_version=8))

    platform = cast(Platform, SimpleNamespace(registry=Registry()))
    said = await train._start_of(platform, "m")
    assert said == ", from v5 (head; the newest checkpoint, v8, is not head)"


def test_an_unexpected_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> int:
        raise ZeroDivisionError("bug")

    monkeypatch.setattr("upcycle.cli.doctor.doctor", broken)
    with pytest.raises(ZeroDivisionError):
        run(["doctor"])


def state(folder: Path, pid: int) -> None:
    """A state file as a running stack leaves it."""
    path = folder / ".upcycle" / "up" / "state.json"
    path.parent.mkdir(parents=True)
    path.write_text(
        json.dumps({"pid": pid, "peers": dict.fromkeys(PEERS, "127.0.0.1:1"), "gateway_key_file": "key"})
    )
    path.chmod(0o600)


def test_addresses_come_from_the_nearest_running_stack(tmp_path: Path) -> None:
    state(tmp_path, os.getpid())
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    found = find_addresses(below, environ={})
    assert found.peers["registry"] == "127.0.0.1:1"
    assert found.gateway_url == "http://127.0.0.1:1/v1"


def test_a_stack_that_is_gone_is_not_found(tmp_path: Path) -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait(timeout=60)
    state(tmp_path, gone.pid)
    with pytest.raises(PlatformNotFound, match="no running platform"):
        find_addresses(tmp_path, environ={})


def test_the_environment_wins_and_half_of_it_is_refused_by_name(tmp_path: Path) -> None:
    whole = {f"UPCYCLE_PEERS_{peer.upper()}": "h:2" for peer in PEERS}
    state(tmp_path, os.getpid())
    assert find_addresses(tmp_path, environ=whole).peers["training"] == "h:2"
    with pytest.raises(PlatformNotFound, match=r"UPCYCLE_PEERS_\* gives addresses only; set UPCYCLE_API_KEY"):
        find_addresses(tmp_path, environ=whole).gateway_key()
    half = {"UPCYCLE_PEERS_REGISTRY": "h:2"}
    assert find_addresses(tmp_path, environ=half).peers["registry"] == "h:2"
    with pytest.raises(UpcycleError, match="UPCYCLE_PEERS_TASKSETS"):
        find_addresses(Path("/"), environ=half)
