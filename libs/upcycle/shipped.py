"""Benchmarks that ship with the package: their names, their files, and which of their tasks only measure."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from upcycle.errors import UnknownName

FOLDER: Final = Path(__file__).parent / "benchmarks"
"""Each benchmark is a folder below it: a package of its own, so that its source is its own."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """name: of the benchmark, of its taskset and of its environment. scenario: of its tasks, which only
    measure: no run trains on them, under whatever name a taskset holds them."""

    name: str
    folder: str
    scenario: str
    summary: str

    @property
    def tasks_file(self) -> Path:
        """The file that has its taskset."""
        return FOLDER / self.folder / "tasks.py"


BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    one.name: one
    for one in (
        Benchmark(
            "sheet-50", "sheet_50", "workbook", "50 spreadsheet tasks on workbooks that are recomputed"
        ),
        Benchmark("repair-30", "repair_30", "repair", "30 small repositories with failing tests"),
        Benchmark(
            "autonomy-10", "autonomy_10", "work", "long work on a simulated computer, in 10 categories"
        ),
    )
}
OTHER_NAMES: Final[Mapping[str, str]] = {"sheetbench-50": "sheet-50"}
"""Names under which other platforms have benchmarks like ours."""
SHARED_NAMES: Final = frozenset({"autonomy-10"})
"""Names of ours that another platform's benchmark has as well."""


def benchmark_named(name: str) -> tuple[Benchmark, str]:
    """(the benchmark, what to say about its name, or ""). Raises UnknownName with the nearest name."""
    ours = OTHER_NAMES.get(name, name)
    if ours in BENCHMARKS:
        is_shared = ours != name or ours in SHARED_NAMES
        said = f"{ours}: Upcycle's own tasks, not those of the benchmark {name!r} of others"
        return BENCHMARKS[ours], said if is_shared else ""
    near = difflib.get_close_matches(name, [*BENCHMARKS, *OTHER_NAMES], n=1)
    known = ", ".join(BENCHMARKS)
    raise UnknownName(
        f"no benchmark {name!r:.80} ships with upcycle",
        f"did you mean {near[0]}? There are: {known}" if near else f"there are: {known}",
    )


def only_measures(environment: str, scenario: str) -> bool:
    """Tasks of this scenario are of a benchmark: held out, wherever they are registered."""
    return environment in BENCHMARKS and BENCHMARKS[environment].scenario == scenario
