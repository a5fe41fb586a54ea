"""Retired words stay out of identifiers, file names, settings, headings, log events and metrics; the
glossary says what to write.
"""

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.support.parsing import parsed

ROOT = Path(__file__).parents[2]
_TREES = ("services", "libs", "proto", "tests", "examples", "benchmarks", "deploy", "docs")
_GENERATED = "libs/upcycle/api/"
_SEEDS = "tests/seeds/"


_NAMING_CALLS = {
    "debug",
    "info",
    "warning",
    "error",
    "exception",
    "critical",
    "Counter",
    "Gauge",
    "Histogram",
}
"""What takes the name of a log event or of a metric as its first argument."""
_IN_SERVICES = " (in services and libs)"


def _retired(*, in_services: bool = True) -> dict[tuple[str, ...], str]:
    """Words, split, -> what to write; from the last table of the glossary."""
    text = (ROOT / "docs/understand/glossary.md").read_text().partition("## Retired words")[2]
    rows = [row.strip("| ").split(" | ") for row in text.splitlines() if row.startswith("| ")][1:]
    here = [(words, new) for words, new in rows if in_services or not words.endswith(_IN_SERVICES)]
    return {
        tuple(word.split()): new
        for words, new in here
        for word in words.removesuffix(_IN_SERVICES).split(", ")
    }


def _words(name: str) -> tuple[str, ...]:
    """`HandState` and `hand_state` -> ("hand", "state")."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return tuple(re.findall(r"[a-z]+", spaced.lower()))


def _singulars(word: str) -> set[str]:
    """`bodies` -> body among others: with each ending that a plural may have taken off."""
    return {word, word.removesuffix("s"), word.removesuffix("es"), re.sub("ies$", "y", word)}


def _refused(name: str, retired: dict[tuple[str, ...], str]) -> str | None:
    words = _words(name)
    for old, new in retired.items():
        found = (zip(words[at:], old, strict=False) for at in range(len(words) - len(old) + 1))
        if any(all(part in _singulars(word) for word, part in pairs) for pairs in found):
            return f"{name!r} holds the retired word {' '.join(old)!r}; write: {new}"
    return None


def _files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", *_TREES], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = [one for one in listed.stdout.splitlines() if not one.startswith((_GENERATED, _SEEDS))]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def _identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.arg() | ast.keyword() if node.arg:
                yield getattr(node, "lineno", 0), node.arg
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called),
                args=[ast.Constant(value=str(name)), *_],
            ) if called in _NAMING_CALLS:
                yield node.lineno, name


def _names_in(path: Path, check: Callable[[str], str | None]) -> Iterator[tuple[int, str]]:
    """(line, name) of everything that a reader meets as a name in a file."""
    text = path.read_text(errors="replace")
    # Parsing takes long; a file whose words are all fine, those of its prose included, need not be parsed.
    if path.suffix == ".py" and any(map(check, set(re.findall(r"\w+", text)))):
        yield from _identifiers(parsed(text))
    for number, line in enumerate(text.splitlines(), 1):
        if path.suffix == ".md" and line.startswith("#"):
            yield number, line
        elif path.suffix == ".proto":
            for name in re.findall(r"\w+", line.partition("//")[0]):
                yield number, name
        elif path.suffix in (".yml", ".yaml", ".env", ".toml"):
            for name in re.findall(r"^\s*-?\s*([A-Za-z_][\w.-]*)\s*[:=]", line):
                yield number, name


def test_no_retired_word_is_a_name() -> None:
    in_services, elsewhere = _retired(), _retired(in_services=False)
    of_services: Callable[[str], str | None] = cache(lambda name: _refused(name, in_services))
    of_others: Callable[[str], str | None] = cache(lambda name: _refused(name, elsewhere))
    found = []
    for path in _files():
        where = path.relative_to(ROOT)
        is_ours = where.parts[0] in ("services", "libs") and "templates" not in where.parts  # a user's then
        check = of_services if is_ours else of_others
        names = [(0, part) for part in where.parts]
        if path.suffix in (".py", ".md", ".proto", ".yml", ".yaml", ".env", ".toml"):
            names += _names_in(path, check)
        found += [f"{where}:{line}: {why}" for line, name in names if (why := check(name))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "name",
    ["HandState", "by_hand", "last_word", "EngineKeeper", "_is_told", "Lane", "StoredBodies", "own_words"],
)
def test_the_check_finds_a_retired_word_in_any_spelling(name: str) -> None:
    retired = _retired() | {("hand", "state"): "interactive"}
    assert _refused(name, retired) is not None


@pytest.mark.parametrize(
    "code",
    ['log.info("keeper_lost", extra={})', 'self._log.error("keepers_lost")', 'G = Gauge("keepers", "Help.")'],
)
def test_the_check_finds_log_events_and_metrics(code: str) -> None:
    names = [name for _, name in _identifiers(parsed(code))]
    assert any(_refused(name, _retired()) for name in names)


@pytest.mark.parametrize(
    "name", ["handler", "on_handed", "shield", "swearword", "planet", "airplane", "bodies"]
)
def test_the_check_leaves_other_words_alone(name: str) -> None:
    assert _refused(name, _retired()) is None
