"""`upcycle completion SHELL`: what the shells make of the script."""

import json
import shutil
import subprocess
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
