"""Which tests `make test` leaves to `make test-long`, since an hour on two cores is not enough for all.

`python -m tests.long_tests TIMES.xml…` writes long_tests.txt anew from the times of runs of all tests
(`pytest --junitxml TIMES.xml`). A function is long if one of its cases took over LIMIT_S. Whatever it takes,
`make test` runs the attacks and what docs/understand/promises.md names, and of each file the quickest
function if it takes at most KEPT_S.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[1]
LISTED: Final = Path(__file__).with_name("long_tests.txt")
PROMISES: Final = REPOSITORY / "docs" / "understand" / "promises.md"
LIMIT_S: Final = 2.0
"""Of a case with what it had to set up, on two cores that other programs used as well."""
KEPT_S: Final = 20.0
_HEAD: Final = "# Written by `python -m tests.long_tests`, which says how.\n"


@cache
def listed() -> frozenset[str]:
    """The long tests, as `tests/folder/test_file.py::test_name`."""
    lines = LISTED.read_text().splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def name_of(item: pytest.Item) -> str:
    """How a collected test would be listed: without its parameters."""
    function, _, _ = item.nodeid.partition("[")
    return function


def chosen(seconds: Mapping[str, float], promised: Iterable[str]) -> list[str]:
    """The long ones. seconds: of the longest case of each function, by its listed name."""
    promised = frozenset(promised)
    by_file: dict[str, list[str]] = defaultdict(list)
    for name in seconds:
        by_file[name.partition("::")[0]].append(name)
    quickest = {min(names, key=lambda name: (seconds[name], name)) for names in by_file.values()}
    return sorted(
        name
        for name, took_s in seconds.items()
        if took_s > LIMIT_S
        and not name.startswith("tests/attacks/")
        and (name not in quickest or took_s > KEPT_S)
        and name.rpartition("::")[2] not in promised
    )


def times_of(*reports: Path) -> dict[str, float]:
    """Seconds of the longest case of each function in these JUnit reports."""
    seconds: dict[str, float] = {}
    for report in reports:
        for case in ElementTree.parse(report).getroot().iter("testcase"):  # noqa: S314 - our own file
            name = _listed_name(case.attrib["classname"], case.attrib["name"])
            seconds[name] = max(seconds.get(name, 0.0), float(case.attrib["time"]))
    return seconds


def _listed_name(classname: str, name: str) -> str:
    return f"{classname.replace('.', '/')}.py::{name.partition('[')[0]}"


def main(reports: list[str]) -> None:
    """Write the list."""
    if not reports:
        sys.exit("give the JUnit reports of a run of all tests: python -m tests.long_tests TIMES.xml…")
    promised = re.findall(r"`(test_\w+)`", PROMISES.read_text())
    names = chosen(times_of(*map(Path, reports)), promised)
    LISTED.write_text(_HEAD + "".join(f"{name}\n" for name in names))
    print(f"{len(names)} long tests")


if __name__ == "__main__":
    main(sys.argv[1:])
