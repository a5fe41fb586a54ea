"""A service as the operating system sees it: arguments, signals, exit statuses, log lines."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

TOY = Path(__file__).with_name("toy_service.py")


def start(mode: str, *args: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(TOY), *args],
        env={**os.environ, "MODE": mode, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{word}\n"


def events(stderr: str) -> dict[str, dict[str, object]]:
    records = [json.loads(line) for line in stderr.splitlines()]
    return {str(record["event"]): record for record in records}


def test_term_drains_and_exits_clean() -> None:
    process = start("good")
    until(process, "working")
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)

    assert process.returncode == 0
    assert events(stderr)["draining"]["signal"] == "SIGTERM"
    assert all(record["service"] == "upcycle-toy" for record in events(stderr).values())


def test_a_second_signal_exits_now() -> None:
    process = start("slow")
    until(process, "working")
    process.send_signal(signal.SIGINT)
    until(process, "draining")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)

    assert process.returncode == 128 + signal.SIGINT  # not 1, which a drain that ran out of time ends with


def test_a_death_is_an_exit_status_and_a_name() -> None:
    process = start("dying")
    _, stderr = process.communicate(timeout=60)

    assert process.returncode == 70
    died = events(stderr)["died"]
    assert died["component"] == "loop"
    assert "out of oil" in str(died["exception"])


def test_wrong_settings_exit_before_any_work() -> None:
    process = start("good", TOY_GROUP_SIZE="1", TOY_COLOUR="red")
    stdout, stderr = process.communicate(timeout=60)

    assert (process.returncode, stdout) == (2, "")
    assert stderr.startswith("upcycle-toy: 2 problem(s) in the settings\n")


def test_help_shows_purpose_and_every_variable() -> None:
    stdout, _ = start("good", "--help").communicate(timeout=60)

    assert "Does nothing, reliably." in stdout
    assert "TOY_GROUP_SIZE = 8\n      Rollouts per group." in stdout
    assert "UPCYCLE_BUS_PASSWORD = (secret, unset)" in stdout


def test_an_argument_is_refused() -> None:
    process = start("good", "--port", "80")
    _, stderr = process.communicate(timeout=60)

    assert process.returncode == 2
    assert "unknown argument '--port'" in stderr
