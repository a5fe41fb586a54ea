"""Defects that an agent plants in a training repository, and the repair tasks that they become.

What it changed is read from its calls of `replace_text` and `write_file`, as the trajectory has them: nothing
that it runs decides what the task is.
"""

import json
import random
from collections.abc import Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Final

from upcycle.errors import UpcycleError
from upcycle.transcripts import ToolUse, Transcript

from .drawing import NUM_FAILING, NUM_KEPT, NUM_SHOWN, Broken, Loaded, assembled
from .libraries import LIBRARIES, Library
from .running import answers

NUM_CALLS: Final = 3_000
"""Drawn of each repository, to see what a change breaks."""
LEAST_BROKEN: Final = NUM_FAILING + NUM_SHOWN
LEAST_RIGHT: Final = NUM_CALLS // 4
"""Fewer make a ruin, which is found without reading it."""
MAX_JSON_CHARS: Final = 48_000
PLANTED: Final = "planted"


class NoDefect(UpcycleError, ValueError):
    """What was changed is no defect that somebody could find and repair."""

    kind = "no_defect"


def intact(seed: int) -> Broken:
    """The repository of a seed without a defect, with visible tests that pass."""
    library, expected = library_of(seed), _expected(seed)
    calls = list(expected)[: NUM_KEPT + NUM_SHOWN]
    return assembled(library, (), library.sources(), {}, calls, expected)


def library_of(seed: int) -> Library:
    """One of the training split."""
    libraries = [one for one in LIBRARIES if one.split == "train"]
    return libraries[seed % len(libraries)]


def changed(seed: int, trajectory: Transcript, modules: Mapping[str, str] | None = None) -> dict[str, str]:
    """The modules that are not as they should be after these calls of tools. modules: those that were not
    before."""
    before = library_of(seed).sources()
    files = {**before, **(modules or {})}
    for call in trajectory.tool_calls:
        path = PurePosixPath(str(call.arguments.get("path", ""))).as_posix()
        if path in files and not call.is_error:
            files[path] = _after(call, files[path])
    return {path: text for path, text in files.items() if text != before[path]}


def _after(call: ToolUse, text: str) -> str:
    """The text of a file after one call."""
    if call.name == "write_file":
        return str(call.arguments.get("content", text))
    old = str(call.arguments.get("old", ""))
    if call.name == "replace_text" and old and text.count(old) == 1:
        return text.replace(old, str(call.arguments.get("new", "")))
    return text


def planted(seed: int, modules: Mapping[str, str]) -> Broken:
    """The task of repairing these changed modules. Raises NoDefect where they are none."""
    library, expected = library_of(seed), _expected(seed)
    sources = library.sources()
    if not modules or modules.keys() - sources.keys():
        raise NoDefect("no module was changed", "change one with replace_text or write_file")
    if (size := len(json.dumps(dict(modules)))) > MAX_JSON_CHARS:
        raise NoDefect(f"the changed modules have {size:,} characters", f"at most {MAX_JSON_CHARS:,} may be")
    returned = _returned(library, {**sources, **modules}, list(expected))
    failing = [call for call, value in returned.items() if value != expected[call]]
    kept = [call for call, value in returned.items() if value == expected[call]]
    if len(failing) < LEAST_BROKEN:
        raise NoDefect(
            f"{len(failing)} of {len(returned)} calls return something else",
            f"at least {LEAST_BROKEN} must, so that tests can show it",
        )
    if len(kept) < LEAST_RIGHT:
        raise NoDefect(
            f"{len(kept)} of {len(returned)} calls are still right", f"leave at least {LEAST_RIGHT} of them"
        )
    chosen = failing[:LEAST_BROKEN], kept[: NUM_KEPT + NUM_SHOWN]
    return assembled(library, (), {**sources, **modules}, {PLANTED: chosen[0]}, chosen[1], expected)


def _returned(library: Library, sources: Mapping[str, str], calls: list[str]) -> dict[str, str]:
    """By call, what it returns in a process of its own, twice alike."""
    names = [f"{library.name}.{file.removesuffix('.py')}" for file in library.files]
    first, second = (answers(sources, names, calls) for _ in range(2))
    if first is None or second is None:
        raise NoDefect("the changed modules do not run to their end", "keep them importable, and fast")
    if first != second:
        raise NoDefect("the changed modules return something else each time", "keep them deterministic")
    return dict(zip(calls, first, strict=True))


@cache
def _expected(seed: int) -> Mapping[str, str]:
    """By call, what the repository without a defect returns."""
    library = library_of(seed)
    rng, right = random.Random(f"repair-30/{PLANTED}/{seed}"), Loaded(library.sources())
    found: dict[str, str] = {}
    for _ in range(10 * NUM_CALLS):
        call = library.call(rng)
        if call not in found:
            found[call] = right.returns(call)
        if len(found) == NUM_CALLS:
            break
    return found
