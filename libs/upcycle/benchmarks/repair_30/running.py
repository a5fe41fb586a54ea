"""What an agent made runs in a process of its own, for seconds, with little memory and without variables.

The process is a child of the episode's, so what confines the episode confines it too. It is given calls and
says what they return; what they should return it never sees.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

TIMEOUT_S: Final = 10.0
MEMORY_BYTES: Final = 1 << 30
MAX_OUTPUT_CHARS: Final = 6_000
_ANSWERS: Final = """
import importlib, json, os, sys
said = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
given = json.load(sys.stdin)
sys.path.insert(0, os.getcwd())
names = {}
for name in given["modules"]:
    try:
        importlib.import_module(name)
        names[name.split(".")[0]] = sys.modules[name.split(".")[0]]
    except Exception as error:
        print(name, type(error).__name__, error)
answers = []
for call in given["calls"]:
    try:
        answers.append(repr(eval(call, dict(names))))
    except Exception as error:
        answers.append("raises " + type(error).__name__)
json.dump(answers, said)
said.flush()
"""


def answers(files: Mapping[str, str], modules: Sequence[str], calls: Sequence[str]) -> list[str] | None:
    """What each call returns, as repr, with these files; None where the process did not say."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            place = Path(folder) / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        given = json.dumps({"modules": list(modules), "calls": list(calls)})
        status, said = run([sys.executable, "-I", "-S", "-c", _ANSWERS], folder, given, errors=False)
    try:
        found = json.loads(said) if status == 0 else None
    except ValueError:
        return None
    is_whole = isinstance(found, list) and len(found) == len(calls)
    return [str(one) for one in found] if is_whole and found is not None else None


def run(
    command: Sequence[str], folder: str | Path, given: str = "", *, errors: bool = True
) -> tuple[int, str]:
    """(exit status, what it printed); the status is -1 where it did not end in time. errors: with what it
    wrote to its error output."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={"PATH": os.environ.get("PATH", ""), "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"},
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_limit,
        )
        try:
            process.communicate(given.encode(), timeout=TIMEOUT_S)
            status = process.returncode
        except subprocess.TimeoutExpired:
            status = -1
        finally:
            _end(process)
        said.seek(0)
        return status, said.read(1 << 20).decode(errors="replace")


def _limit() -> None:
    for kind, value in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, int(TIMEOUT_S)),
        (resource.RLIMIT_FSIZE, 16 << 20),
    ):
        _, hard = resource.getrlimit(kind)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
