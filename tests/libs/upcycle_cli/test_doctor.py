"""What `upcycle doctor` asks: every process of a platform that runs here, and what it says of the others."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from upcycle.cli import doctor
from upcycle.cli.exits import Exit
from upcycle.cli.main import run
from upcycle.environment import landlock
from upcycle.platform import PEERS

ANSWERS = """
import http.server, sys
class Says(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[1]))
        self.end_headers()
        self.wfile.write(sys.argv[2].encode())
server = http.server.HTTPServer(("127.0.0.1", 0), Says)
print(server.server_port, flush=True)
server.serve_forever()
"""
SAYS = {
    "rollout_sampler": ("200", "{}"),
    "reward_grader": ("200", "{}"),
    "model_gateway": ("503", '{"reasons": {"outbox": "alarm: it is refused"}}'),
    "policy_engine_head": ("503", '{"reasons": {"bus": "it is gone"}}'),
    "s3": ("403", ""),
}


def found(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    printed = map(json.loads, capsys.readouterr().out.splitlines())
    return {line["what"]: line for line in printed}


@contextmanager
def process(name: str) -> Iterator[dict[str, Any]]:
    """One that says to everybody what is in SAYS, as state.json names it."""
    command = [sys.executable, "-c", ANSWERS, *SAYS[name]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as started:
        try:
            assert started.stdout is not None
            yield {"name": name, "pid": started.pid, "http_port": int(started.stdout.readline())}
        finally:
            started.kill()


@pytest.fixture
def state_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where a platform of this folder says what runs; its bus does not answer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("event_bus.connection._CONNECT_S", 0.3)
    monkeypatch.setenv("UPCYCLE_BUS_URL", "nats://127.0.0.1:1")
    for peer in PEERS:
        monkeypatch.delenv(f"UPCYCLE_PEERS_{peer.upper()}", raising=False)
    folder = tmp_path / ".upcycle" / "up"
    folder.mkdir(parents=True)
    path = folder / "state.json"
    path.touch(mode=0o600)
    return path


def test_every_process_is_asked_and_each_that_is_not_ready_is_a_line(
    state_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as running:
        processes = {name: running.enter_context(process(name)) for name in SAYS}
        os.kill(processes["reward_grader"]["pid"], signal.SIGSTOP)
        gone = {"name": "provision_watch", "pid": None, "http_port": 1}
        peers = dict.fromkeys(PEERS, "127.0.0.1:1")
        state = {"pid": os.getpid(), "peers": peers, "processes": [*processes.values(), gone]}
        state_file.write_text(json.dumps(state))
        assert run(["doctor", "--json"]) == Exit.FAILED
    said = found(capsys)
    assert not {"rollout_sampler", "processes"} & {*said}
    assert "403" not in said["s3"]["detail"]
    assert said["reward_grader"]["verdict"] == "fail"
    assert "does not answer (TimeoutError)" in said["reward_grader"]["detail"]
    assert "does not answer (ConnectionRefusedError)" in said["provision_watch"]["detail"]
    assert said["model_gateway"]["verdict"] == "warn"
    assert said["model_gateway"]["detail"] == "outbox: alarm: it is refused"
    assert said["policy_engine_head"]["verdict"] == "fail"
    assert said["policy_engine_head"]["detail"] == "bus: it is gone"


def test_that_all_processes_are_ready_is_one_line(
    state_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with process("rollout_sampler") as one, process("s3") as other:
        peers = dict.fromkeys(PEERS, "127.0.0.1:1")
        state = {"pid": os.getpid(), "peers": peers, "processes": [one, other]}
        state_file.write_text(json.dumps(state))
        run(["doctor", "--json"])
    assert found(capsys)["processes"]["detail"] == "all 2 are ready"


def test_what_is_not_asked_where_only_the_public_addresses_are_known_is_named(
    state_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("UPCYCLE_BUS_URL")
    for peer in PEERS:
        monkeypatch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", "127.0.0.1:1")
    run(["doctor", "--json"])
    said = found(capsys)
    assert said["grpo_trainer"]["detail"] == "does not answer at 127.0.0.1:1"
    assert said["processes"]["verdict"] == "warn"
    assert "rollout_sampler, reward_grader, model_gateway" in said["processes"]["detail"]
    assert (said["bus"]["verdict"], said["bus"]["detail"]) == ("warn", "not asked, set UPCYCLE_BUS_URL")


@pytest.mark.parametrize(
    ("version", "verdict", "says"),
    [
        (7, "ok", "Landlock 7"),
        (4, "warn", "cannot hold back signals (Linux 6.12); deployed environments are refused"),
        (0, "warn", "files (Linux 5.13), cutting files short (Linux 6.2), TCP ports (Linux 6.7), signals"),
    ],
)
def test_it_says_whether_this_kernel_holds_environments_in_their_cells(
    monkeypatch: pytest.MonkeyPatch, version: int, verdict: str, says: str
) -> None:
    monkeypatch.setattr(landlock, "version", lambda: version)
    finding = doctor._cells()
    assert finding.verdict == verdict
    assert says in finding.detail
