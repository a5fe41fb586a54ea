"""Tasks drawn from seeds: a repository with one or two defects, visible tests, and calls for the hidden ones.

What a call returns is known from the repository without defects, which runs here: it is ours. What the agent
made of it never runs in this process.
"""

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from types import ModuleType
from typing import Any, Final

from .libraries import LIBRARIES, Defect, Library, Split

NUM_HELD_OUT: Final = 30
NUM_FAILING: Final = 10
"""Hidden calls that each defect breaks."""
NUM_KEPT: Final = 25
"""Hidden calls that are right from the start, and are to stay so."""
NUM_SHOWN: Final = 3
"""Visible tests that each defect breaks, and half as many again that pass."""
MAX_DRAWS: Final = 6_000


@dataclass(frozen=True, slots=True)
class Broken:
    """A task. files: the repository by path, its visible tests among them. failing: by the name of a defect
    the hidden calls that it breaks; kept: hidden calls that are right. expected: what each call returns."""

    library: Library
    defects: tuple[Defect, ...]
    files: Mapping[str, str]
    failing: Mapping[str, tuple[str, ...]]
    kept: tuple[str, ...]
    expected: Mapping[str, str]

    def repaired(self) -> dict[str, str]:
        """The files that differ from the repository without defects, as they should be."""
        return {path: text for path, text in self.library.sources().items() if self.files[path] != text}


def kinds_of(split: Split) -> list[tuple[Library, tuple[Defect, ...]]]:
    """What can be broken in a split: each defect alone, and pairs of them; a pair of one file comes last."""
    found: list[tuple[Library, tuple[Defect, ...]]] = []
    for library in (one for one in LIBRARIES if one.split == split):
        pairs = sorted(combinations(library.defects, 2), key=lambda pair: pair[0].file == pair[1].file)
        found += [(library, (one,)) for one in library.defects]
        found += [(library, pair) for pair in pairs[: len(library.defects)]]
    return found


@cache
def drawn(split: Split, seed: int) -> Broken:
    """The task of a seed."""
    kinds = kinds_of(split)
    library, defects = kinds[seed % len(kinds)]
    rng = random.Random(f"repair-30/{split}/{seed}")
    right = Loaded(library.sources())
    broken = {one.name: Loaded(library.sources([one])) for one in defects}
    failing: dict[str, list[str]] = {one.name: [] for one in defects}
    kept: list[str] = []
    expected: dict[str, str] = {}
    for _ in range(MAX_DRAWS):
        call = library.call(rng)
        if call in expected:
            continue
        expected[call] = right.returns(call)
        breaks = [name for name, one in broken.items() if one.returns(call) != expected[call]]
        if not breaks and len(kept) < NUM_KEPT + NUM_SHOWN:
            kept.append(call)
        elif len(breaks) == 1 and len(failing[breaks[0]]) < NUM_FAILING + NUM_SHOWN:
            failing[breaks[0]].append(call)
        is_full = all(len(one) == NUM_FAILING + NUM_SHOWN for one in failing.values())
        if is_full and len(kept) == NUM_KEPT + NUM_SHOWN:
            break
    return assembled(library, defects, library.sources(defects), failing, kept, expected)


def assembled(
    library: Library,
    defects: tuple[Defect, ...],
    sources: Mapping[str, str],
    failing: Mapping[str, list[str]],
    kept: list[str],
    expected: Mapping[str, str],
) -> Broken:
    """The task of these modules. failing, kept: calls, the first of which become visible tests."""
    if short := [name for name, calls in failing.items() if len(calls) <= NUM_SHOWN]:
        raise ValueError(f"{library.name}: {MAX_DRAWS} calls do not show the defect {short[0]!r}")
    shown = [call for calls in (*failing.values(), kept) for call in calls[:NUM_SHOWN]]
    files = {
        "README.md": f"# {library.name}\n\n{library.about} Its tests: the tool run_tests.\n",
        **sources,
        "tests/__init__.py": "",
        f"tests/test_{library.name}.py": _tests(library, shown, expected),
    }
    hidden = {name: tuple(calls[NUM_SHOWN:]) for name, calls in failing.items()}
    return Broken(library, defects, files, hidden, tuple(kept[NUM_SHOWN:]), expected)


def _tests(library: Library, calls: Sequence[str], expected: Mapping[str, str]) -> str:
    """A file of tests, in an order that does not say which of them fail."""
    lines = [f'"""Tests of {library.name}."""', "", "import unittest", ""]
    lines += [f"import {library.name}.{file.removesuffix('.py')}" for file in library.files]
    lines += ["", "", f"class Test{library.name.title()}(unittest.TestCase):"]
    for number, call in enumerate(sorted(calls)):
        name = call.split("(")[0].split(".")[-1]
        lines += [f"    def test_{name}_{number}(self) -> None:"]
        lines += [f"        self.assertEqual({call}, {expected[call]})", ""]
    return "\n".join(lines)


class Loaded:
    """Our own modules in memory, under names that nothing else sees."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        modules: dict[str, ModuleType] = {}
        for path, text in sources.items():
            name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            modules[name] = module = ModuleType(name)
            parent, _, last = name.rpartition(".")
            if parent:
                setattr(modules[parent], last, module)
            else:
                module.__path__ = []
            before = {one: sys.modules.get(one) for one in modules}
            sys.modules.update(modules)
            try:
                exec(compile(text, path, "exec"), module.__dict__)  # noqa: S102 - of this package, by its seeds
            finally:
                _put_back(before)
        self._names: dict[str, Any] = {name: one for name, one in modules.items() if "." not in name}

    def returns(self, call: str) -> str:
        """What it returns, as repr; of an error its type."""
        try:
            return repr(eval(call, dict(self._names)))  # noqa: S307 - drawn by this package
        except Exception as error:
            return f"raises {type(error).__name__}"


def _put_back(before: Mapping[str, ModuleType | None]) -> None:
    for name, module in before.items():
        if module is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = module
