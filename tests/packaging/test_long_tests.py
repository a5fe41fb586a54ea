"""Which tests `make test` leaves out, and that the list of them is true."""

import re
import subprocess
import sys
from pathlib import Path

from tests.long_tests import REPOSITORY, chosen, listed, times_of

REPORT = """<testsuites><testsuite name="pytest">
<testcase classname="tests.a.test_x" name="test_quick" time="0.010" />
<testcase classname="tests.a.test_x" name="test_cases[1]" time="0.500" />
<testcase classname="tests.a.test_x" name="test_cases[a.b-2]" time="7.250" />
</testsuite></testsuites>"""


def test_the_list_names_tests_that_exist() -> None:
    assert len(listed()) > 100
    for name in sorted(listed()):
        file, _, function = name.partition("::")
        assert (REPOSITORY / file).exists(), f"{name}: the list still has the old name of the file"
        text = (REPOSITORY / file).read_text()
        is_here = re.search(rf"\b{function}\b", text) or "import *" in text
        assert is_here, f"{name}: the list still has the old name of the test"


def test_a_function_is_as_long_as_its_longest_case(tmp_path: Path) -> None:
    report = tmp_path / "times.xml"
    report.write_text(REPORT)
    assert times_of(report) == {"tests/a/test_x.py::test_quick": 0.01, "tests/a/test_x.py::test_cases": 7.25}


def test_long_ones_are_left_out_but_for_attacks_promises_and_one_of_each_file() -> None:
    seconds = {
        "tests/a/test_x.py::test_quick": 0.01,
        "tests/a/test_x.py::test_long": 9.0,
        "tests/a/test_x.py::test_promised": 9.0,
        "tests/b/test_y.py::test_longer": 30.0,
        "tests/b/test_y.py::test_least_long": 19.0,
        "tests/c/test_alone.py::test_only_one": 21.0,
        "tests/attacks/test_z.py::test_quick": 0.01,
        "tests/attacks/test_z.py::test_attack": 50.0,
    }
    assert chosen(seconds, ["test_promised"]) == [
        "tests/a/test_x.py::test_long",
        "tests/b/test_y.py::test_longer",
        "tests/c/test_alone.py::test_only_one",
    ]


def test_the_two_halves_are_the_whole() -> None:
    file = "tests/services/checkpoint_registry/test_watching.py"
    every, rest, long = (_collected(file, choice) for choice in ("all", "skip", "only"))
    assert rest
    assert long
    assert sorted(rest + long) == sorted(every)


def _collected(file: str, choice: str) -> list[str]:
    argv = (sys.executable, "-m", "pytest", "-q", "--collect-only", "--long", choice, file)
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]
