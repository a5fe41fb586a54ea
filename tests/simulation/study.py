"""`python -m tests.simulation.study`: puts each bug back into a copy of the code; how soon is it found?"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

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
        found = _simulated(copy, "0-1000000", cpu_s)
    broken: dict[str, str] = found["broken"]
    for seed in broken:
        if without := _simulated(_ROOT, seed, cpu_s)["broken"]:
            raise RuntimeError(f"seed {seed} is broken without {bug.name!r} too: {without}")
    return {
        "bug": bug.name,
        "found": bool(broken),
        **{key: found[key] for key in ("histories", "cpu_s", "broken")},
    }


def _apply(bug: Bug, copy: Path) -> None:
    changes = [(bug.path, bug.was, bug.put_back)]
    for path, was, put_back in changes if bug.also is None else [*changes, bug.also]:
        file = copy / path
        text = file.read_text()
        if text.count(was) != 1:
            raise ValueError(f"{path} has the text of {bug.name!r} {text.count(was)} times, expected once")
        file.write_text(text.replace(was, put_back))


def _simulated(copy: Path, seeds: str, cpu_s: float) -> dict[str, Any]:
    paths = os.pathsep.join(str(copy / part) for part in ("", "services", "libs"))
    command = [sys.executable, "-m", "tests.simulation", "--seeds", seeds, "--cpu-s", str(cpu_s)]
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """One line per bug; the second argument is a part of their names."""
    cpu_s = float(sys.argv[1]) if len(sys.argv) > 1 else _CPU_S
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    for bug in (one for one in BUGS if wanted in one.name):
        print(json.dumps(find(bug, cpu_s=cpu_s)), flush=True)


if __name__ == "__main__":
    main()
