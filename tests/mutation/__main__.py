"""Mutates one module, runs its tests against every mutant and prints what survived.

    python -m tests.mutation planner

mutmut wants one tree with the packages at its root; it gets one of links, in a temporary folder.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import orig_function_and_class_names_from_key
from tests.mutation.modules import MODULES, Module

ROOT = Path(__file__).parents[2]
SURVIVORS = Path(__file__).parent / "survivors.md"
WANTED = 0.9
ALIVE = ("survived", "no tests", "suspicious", "not checked")
# Plain tests alone: a property, or a test with a server, takes seconds, and there are hundreds of mutants.
TESTS = "not asyncio and not hypothesis and not slow"


def plant(tree: Path, module: Module) -> None:
    """Lay out what mutmut reads."""
    for package in module.packages:
        source = next(
            path for path in (ROOT / "services" / package, ROOT / "libs" / package) if path.is_dir()
        )
        (tree / package).symlink_to(source)
    (tree / "tests").symlink_to(ROOT / "tests")
    options = {
        "source_paths": module.packages,
        "only_mutate": list(module.sources),
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-m", TESTS],
        "pytest_add_cli_args_test_selection": [f"tests/{test}" for test in module.tests],
        "timeout_multiplier": 5.0,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in options.items()]
    project = (ROOT / "pyproject.toml").read_text()
    (tree / "pyproject.toml").write_text("\n".join([project, "[tool.mutmut]", *lines, ""]))


def verdicts() -> Iterator[tuple[str, str]]:
    """Every mutant of the tree that is the working folder, with what became of it."""
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        for mutant, code in data.exit_code_by_key.items():
            yield mutant, status_by_exit_code[code]


def described(mutant: str) -> str:
    """`Class.function`: `was` -> `became`, as survivors.md writes it."""
    function, owner = orig_function_and_class_names_from_key(mutant)
    changes = [line for line in get_diff_for_mutant(mutant).splitlines()[2:] if line[0] in "+-"]
    was, became = (" ".join(line[1:].strip() for line in changes if line[0] == sign) for sign in "-+")
    return f"`{f'{owner}.' if owner else ''}{function}`: `{was}` -> `{became}`"


def report(name: str) -> bool:
    """Print the figures and the survivors that survivors.md does not explain; whether enough were killed."""
    known = SURVIVORS.read_text().partition("## Not equivalent")
    counts: Counter[str] = Counter()
    unknown = []
    for mutant, verdict in verdicts():
        alive = described(mutant) if verdict in ALIVE else ""
        counts["killed" if not alive else "equivalent" if alive in known[0] else "survived"] += 1
        if alive and alive not in known[0] + known[2]:
            unknown.append(f"{alive} ({verdict})")
    print(*unknown, sep="\n")
    share = counts["killed"] / max(1, counts["killed"] + counts["survived"])
    print(
        f"{name}: {counts.total()} mutants, {counts['killed']} killed, {counts['survived']} survived, "
        f"{counts['equivalent']} equivalent: {share:.1%} of those that are not equivalent were killed"
    )
    return share >= WANTED


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("module", choices=MODULES)
    name = parser.parse_args().module
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        plant(tree, MODULES[name])
        os.chdir(tree)
        mutmut = str(Path(sys.executable).parent / "mutmut")
        run = subprocess.run(
            [mutmut, "run", "--max-children", "1"], capture_output=True, text=True, check=False
        )
        if run.returncode:
            print(run.stdout, run.stderr)
            return run.returncode
        return 0 if report(name) else 1


if __name__ == "__main__":
    sys.exit(main())
