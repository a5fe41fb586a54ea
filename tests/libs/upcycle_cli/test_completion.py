"""`upcycle completion SHELL`: what the shells make of the script."""

import json
import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from tests.libs.upcycle_cli.test_cli import upcycle

from upcycle.cli.main import BUS_GROUP, COMMANDS, GROUPS

_ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_upcycle
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    done = upcycle("completion", "bash", cwd=folder)
    assert done.returncode == 0, done.stderr
    script = folder / "upcycle.bash"
    script.write_text(done.stdout)
    return script


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers at the end of a line."""
    command = ["bash", "--norc", "-c", _ASK, "bash", str(script), "upcycle", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


def test_bash_completes_commands_flags_and_values(bash_script: Path) -> None:
    assert completed(bash_script, "tasksets", "d") == ["diff", "delete"]
    assert set(COMMANDS) | set(GROUPS) | {BUS_GROUP} <= set(completed(bash_script, ""))
    assert completed(bash_script, "trajectories", "list", "--fam") == ["--family"]
    assert "excluded" in completed(bash_script, "trajectories", "list", "--state", "")
    assert completed(bash_script, "bus", "dead", "re") == ["replay"]


def test_bash_completes_the_words_of_flags_that_take_one_of_a_few(bash_script: Path) -> None:
    assert completed(bash_script, "init", "shop", "--preset", "") == ["blank", "incident", "mcp", "sheet"]
    assert completed(bash_script, "eval", "--benchmark", "sheet") == ["sheet-50"]
    assert completed(bash_script, "play", "tasks.py", "--agent", "cl") == ["claude"]
    assert "answer_error" in completed(bash_script, "trajectories", "list", "--failure", "")


def typed(script: Path, line: str, wanted: str, folder: Path) -> str:
    """What a terminal shows after a tab; at the latest a minute later."""
    here, there = pty.openpty()
    command = ["bash", "--norc", "--noprofile", "-i"]
    with subprocess.Popen(command, stdin=there, stdout=there, stderr=there, cwd=folder, text=False) as bash:
        os.close(there)
        os.write(here, f"source {script}\n{line}\t".encode())
        shown, give_up_at = "", time.monotonic() + 60
        while wanted not in shown and time.monotonic() < give_up_at:
            if select.select([here], [], [], 1.0)[0]:
                shown += os.read(here, 4096).decode(errors="replace")
        bash.kill()
    os.close(here)
    return shown


@pytest.mark.parametrize("line", ["upcycle eval ta", "upcycle check ta", "upcycle play --script ta"])
def test_bash_falls_back_to_files(bash_script: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "tasks of mine.py").touch()
    assert "tasks\\ of\\ mine.py" in typed(bash_script, line, "mine.py", tmp_path)


@pytest.mark.parametrize(("shell", "begins"), [("zsh", "#compdef upcycle"), ("fish", "# Fish completion")])
def test_the_other_shells_have_every_command_too(shell: str, begins: str, tmp_path: Path) -> None:
    done = upcycle("completion", shell, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith(begins)
    for name in (*COMMANDS, *GROUPS, *(name for _, commands in GROUPS.values() for name in commands)):
        assert name in done.stdout, name
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=done.stdout, text=True, timeout=60, check=True)


def test_another_shell_is_refused_by_name(tmp_path: Path) -> None:
    done = upcycle("completion", "tcsh", cwd=tmp_path)
    assert done.returncode == 2
    assert "tcsh" in done.stdout + done.stderr
    assert json.dumps("fish") in done.stdout + done.stderr
