"""The environment: a repository in a folder, tools to read, edit and run, and hidden tests as the reward."""

import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from upcycle import Environment, EvaluationResult
from upcycle.errors import UnknownName
from upcycle.scenario import Reference
from upcycle.transcripts import Answer

from .drawing import NUM_HELD_OUT, Broken, drawn
from .errors import FileRefused
from .grading import grade
from .planting import NoDefect, changed, intact, library_of, planted
from .running import MAX_OUTPUT_CHARS, run

env = Environment("repair-30", data=["repositories"])

MAX_FILE_CHARS: Final = 50_000
MAX_FILES: Final = 40

# An episode is a process of its own, so its folder is this module's state: set by the scenario.
_folders: list[Path] = []


@env.tool()
def list_files() -> str:
    """Files of the repository, with their numbers of lines."""
    found = sorted(path for path in _folder().rglob("*") if path.is_file() and not path.is_symlink())
    return "\n".join(
        f"{path.relative_to(_folder())}: {len(_text(path).splitlines())} lines" for path in found[:MAX_FILES]
    )


@env.tool()
def read_file(path: str) -> str:
    """The text of a file."""
    return _text(_inside(path))


@env.tool()
def replace_text(path: str, old: str, new: str) -> str:
    """Put a text in the place of another one, which stands in the file exactly once."""
    place = _inside(path)
    text = _text(place)
    if not old or text.count(old) != 1:
        raise FileRefused(
            f"{path} has {old!r:.80} {text.count(old) if old else 0} times", "give a text that it has once"
        )
    return _written(place, text.replace(old, new))


@env.tool()
def write_file(path: str, content: str) -> str:
    """Write a whole file."""
    return _written(_inside(path, must_exist=False), content)


@env.tool()
def run_tests() -> str:
    """Run the visible tests; the end of what they print."""
    return _ran([sys.executable, "-m", "unittest", "discover", "-s", "tests", "-t", "."])


@env.tool()
def run_python(code: str) -> str:
    """Run a Python program in the folder of the repository, at most 10 seconds; the end of what it prints."""
    return _ran([sys.executable, "-c", code])


@env.scenario("repair")
def repair(number: int) -> Generator[Any, Any, None]:
    """Repair the repository of one of the thirty tasks."""
    if not 0 <= number < NUM_HELD_OUT:
        raise UnknownName(f"repair-30 has no task {number}", f"its tasks are 0 to {NUM_HELD_OUT - 1}")
    task = drawn("held_out", number)
    with _opened(task) as root:
        yield _prompt(task)
        yield grade(task, _left(root))


@env.scenario("practice")
def practice(seed: int) -> Generator[Any, Any, None]:
    """The same work on other repositories, for training: as many as there are seeds."""
    _check_seed(seed)
    task = drawn("train", seed)
    with _opened(task) as root:
        yield _prompt(task)
        yield grade(task, _left(root))


@env.scenario("plant")
def plant(seed: int) -> Generator[Any, Any, None]:
    """Plant a defect in a training repository: the proposer of a run that plays against itself."""
    _check_seed(seed)
    with _opened(intact(seed)):
        answer = yield _planting_prompt(seed)
        try:
            planted(seed, changed(seed, answer.trajectory))
        except NoDefect as error:
            yield EvaluationResult(0.0, False, info={"reason": str(error)})
        else:
            yield EvaluationResult(1.0, True)


@env.scenario("mend")
def mend(seed: int, modules: dict[str, str]) -> Generator[Any, Any, None]:
    """Repair what was planted. modules: those that were changed, by path."""
    _check_seed(seed)
    task = planted(seed, modules)
    with _opened(task) as root:
        yield _prompt(task)
        yield grade(task, _left(root))


@mend.proposed_by(plant)
def proposed(proposal: Answer, seed: int) -> dict[str, Any]:
    """The planted defect as a task."""
    return {"seed": seed, "modules": changed(seed, proposal.trajectory)}


@mend.left_over
def still_broken(failed: Answer, seed: int, modules: dict[str, str]) -> dict[str, Any]:
    """What a failed repair leaves, where that is a defect that somebody could find. Raises NoDefect."""
    left = changed(seed, failed.trajectory, modules)
    planted(seed, left)
    return {"seed": seed, "modules": left}


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise UnknownName(f"there is no seed {seed}", "seeds begin at 0")


@repair.gold
def repaired(number: int) -> Reference:
    """Writes the modules as they should be; for `upcycle check`."""
    return _reference(drawn("held_out", number))


@practice.gold
def practised(seed: int) -> Reference:
    """The same of a training task."""
    return _reference(drawn("train", seed))


@plant.gold
def a_known_defect(seed: int) -> Reference:
    """Plants the first defect of the repository that is known."""
    library = library_of(seed)
    known = library.defects[0]
    path = f"{library.name}/{known.file}"
    edit = {"path": path, "old": known.right, "new": known.wrong}
    return Reference("A defect is planted.", (("replace_text", edit),))


@mend.gold
def mended(seed: int, modules: dict[str, str]) -> Reference:
    """Puts the modules back."""
    return _reference(planted(seed, modules))


def _reference(task: Broken) -> Reference:
    calls = tuple(("write_file", {"path": path, "content": text}) for path, text in task.repaired().items())
    return Reference("The repository is repaired.", calls)


@contextmanager
def _opened(task: Broken) -> Generator[Path]:
    """The repository in a folder of its own, while the episode lasts."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path, text in task.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        _folders.append(root)
        try:
            yield root
        finally:
            _folders.remove(root)


def _prompt(task: Broken) -> str:
    about = task.library.about.rstrip(".")
    return (
        f"The repository {task.library.name} ({about}) has failing tests. Find what is wrong in its "
        "modules and mend it; their docstrings say what is right. Hidden tests of the same functions decide. "
        f"Its files:\n{list_files()}\nSay so when it is mended."
    )


def _planting_prompt(seed: int) -> str:
    library = library_of(seed)
    return (
        f"The repository {library.name} ({library.about.rstrip('.')}) is right, and its tests pass. Plant "
        "one defect in its modules that somebody else will have to find and repair: some calls of its "
        "functions must return something wrong, most others must stay right, and it should not be seen at a "
        "glance. "
        "Change modules with replace_text or write_file; what other programs write does not count. "
        f"Its files:\n{list_files()}\nSay so when it is planted."
    )


def _left(root: Path) -> dict[str, str]:
    """The modules that the agent left; what is no text, or too large, is not there."""
    found = {}
    for path in sorted(root.rglob("*.py"))[:MAX_FILES]:
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= 4 * MAX_FILE_CHARS:
            found[path.relative_to(root).as_posix()] = path.read_text(errors="replace")
    return found


def _folder() -> Path:
    if not _folders:
        raise RuntimeError("no repository is open: start the scenario 'repair' before calling tools")
    return _folders[-1]


def _inside(path: str, *, must_exist: bool = True) -> Path:
    root = _folder().resolve()
    place = (root / path).resolve()
    if not place.is_relative_to(root) or place == root:
        raise FileRefused(f"{path!r:.80} is not in the repository", "give a path as list_files shows it")
    if must_exist and not place.is_file():
        raise FileRefused(f"there is no file {path!r:.80}", "list_files names them")
    return place


def _text(place: Path) -> str:
    if place.stat().st_size > 4 * MAX_FILE_CHARS:
        raise FileRefused(
            f"{place.name} has {place.stat().st_size:,} bytes", f"at most {4 * MAX_FILE_CHARS:,} are read"
        )
    return place.read_text(errors="replace")


def _written(place: Path, content: str) -> str:
    if len(content) > MAX_FILE_CHARS:
        raise FileRefused(
            f"content has {len(content):,} characters", f"a file has at most {MAX_FILE_CHARS:,}"
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(content)
    return f"{place.relative_to(_folder().resolve())}: {len(content.splitlines())} lines written"


def _ran(command: list[str]) -> str:
    status, said = run(command, _folder())
    ended = "not over in time" if status == -1 else f"exit status {status}"
    return f"{said[-MAX_OUTPUT_CHARS:]}\n({ended})"
