"""`python -m tests.simulation.study`: puts each bug back into a copy of the code; how soon is it found?"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.simulation.put_back import BUGS, Bug

_ROOT: Final = Path(__file__).parents[2]
_CPU_S: Final = 600.0


def find(bug: Bug, *, cpu_s: float = _CPU_S) -> dict[str, object]:
    """The line of a bug in the table: the first seed that finds it, after how many histories and seconds."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in ("services", "libs", "tests/simulation"):
            shutil.copytree(_ROOT / part, copy / part)
        _apply(bug, copy)
        found = _simulated(copy, cpu_s)
    broken = found["broken"]
    return {
        "bug": bug.name,
        "found": bool(broken),
        **{key: found[key] for key in ("histories", "cpu_s", "broken")},
    }


def _apply(bug: Bug, copy: Path) -> None:
    file = copy / bug.path
    text = file.read_text()
    if text.count(bug.was) != 1:
        raise ValueError(
            f"{bug.path} has the text of {bug.name!r} {text.count(bug.was)} times, expected once"
        )
    file.write_text(text.replace(bug.was, bug.put_back))


def _simulated(copy: Path, cpu_s: float) -> dict[str, object]:
    paths = os.pathsep.join(str(copy / part) for part in ("", "services", "libs"))
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "0-1000000", "--cpu-s", str(cpu_s)]
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """One line per bug."""
    cpu_s = float(sys.argv[1]) if len(sys.argv) > 1 else _CPU_S
    for bug in BUGS:
        print(json.dumps(find(bug, cpu_s=cpu_s)), flush=True)


if __name__ == "__main__":
    main()
