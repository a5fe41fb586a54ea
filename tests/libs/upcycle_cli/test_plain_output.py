"""No command sends a terminal what somebody else wrote for it: neither where it prints nor in a console."""

import ast
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import upcycle.cli

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31mred\u202e\rx"
PROGRAM = f"""
import sys
from upcycle.cli.plain_output import keep_plain, unfiltered
from upcycle.cli.output import print_json, result_console
print("before")
keep_plain()
keep_plain()
print("one", {HOSTILE!r}, flush=True)
sys.stdout.write({HOSTILE!r} + "\\n")
result_console().print("[bold]two[/] " + {HOSTILE!r}, highlight=False)
print("three")
print_json("x", {{"text": {HOSTILE!r}}})
unfiltered(sys.stdout).write("raw \\x1b[0m\\n")
unfiltered(sys.stdout).flush()
print("last")
"""
MAKERS = ("Console", "console.Console", "rich.print")
ALLOWED = {"output.py", "consoles.py", "play.py"}
"""They make consoles: of TextConsole, and a silent one."""


def on_a_terminal(program: str) -> str:
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "NO_COLOR": "", "COLUMNS": "200"}
    del environ["NO_COLOR"]
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=theirs, stdin=subprocess.DEVNULL, env=environ
    ) as child:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 65536):
                said += part
        except OSError:  # the other end is closed
            pass
        assert child.wait(60) == 0
    os.close(ours)
    return said.decode().replace("\r\n", "\n")


def through_a_pipe(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout


@pytest.mark.parametrize("run", [on_a_terminal, through_a_pipe])
def test_text_of_others_moves_no_cursor_and_data_is_as_it_was(run: object) -> None:
    said = run(PROGRAM)  # type: ignore[operator]
    before, one, written, two, three, line, raw, last = said.splitlines()
    harmless = "\ufffd[2J\ufffd]0;owned\ufffd\ufffd31mred\ufffd\ufffdx"
    assert (before, one, written, three, last) == ("before", f"one {harmless}", harmless, "three", "last")
    # rich leaves bells and returns out itself
    assert two.endswith("\ufffd[2J\ufffd]0;owned\ufffd31mred\ufffdx"), (
        "rich leaves bells and returns out itself"
    )
    assert ("\x1b[1mtwo\x1b[0m" in two) == (run is on_a_terminal), "rich's own colours are there"
    assert r"\u001b[2J" in line
    assert raw == "raw \x1b[0m"


def test_the_command_filters_before_it_does_anything() -> None:
    """Whichever command prints, and whatever."""
    tree = ast.parse((Path(upcycle.cli.__path__[0]) / "main.py").read_text())
    (main,) = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "main"]
    first = main.body[1]
    assert ast.unparse(first) == "keep_plain()"


def test_no_command_makes_a_console_of_its_own() -> None:
    """One of rich's would send the control characters of a text."""
    makers = {
        path.name
        for path in Path(upcycle.cli.__path__[0]).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in MAKERS
    }
    assert makers <= ALLOWED
    assert "play.py" in makers
