"""Where a command writes a tasks file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from upcycle.cli.taskset_selection import UnclearSelection
from upcycle.tasks import Taskset
from upcycle.whole_files import written_whole

ENDINGS: Final = (".jsonl", ".json", ".csv")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class TasksFile:
    """A file that is not there yet, or may be replaced."""

    output: Annotated[Path, Parameter(name=["--output", "-o"])]
    """file to write: .jsonl, .json or .csv."""
    overwrite: Annotated[bool, Parameter(negative="")] = False
    """the output may exist."""

    def check(self) -> None:
        """Whether a tasks file can be written there. Raises UnclearSelection."""
        output = self.output
        if output.suffix not in ENDINGS:
            way_out = f"let it end in {', '.join(ENDINGS)}"
            raise UnclearSelection(f"--output {output} is no tasks file", way_out)
        if output.is_dir() or (output.exists() and not self.overwrite):
            way_out = "choose another file, or give --overwrite"
            raise UnclearSelection(f"{output} is there already", way_out)
        if not output.absolute().parent.is_dir():
            raise UnclearSelection(f"{output}: there is no folder {output.parent}", "make it first")

    def write(self, taskset: Taskset) -> None:
        """All of it or nothing."""
        with written_whole(self.output) as draft:
            taskset.save(draft)
