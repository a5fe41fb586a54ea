"""Ids, subjects and keys are spelled in libs/identities only: "the first one wins" hangs on equal
spellings.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.parsing import parsed

ROOT = Path(__file__).parents[3]
_OWNER = ROOT / "libs/identities"
_GENERATED = ROOT / "libs/upcycle/api"
_SPELLED = re.compile(
    r"(run|episode|group|trajectory|step|policy|checkpoint|session|engine|gateway)\.[a-z_]+/"
    r"|traj-|ckpt-|interactive-|up\.[a-z{*]+\."
    r"|([a-z]+/)?(trajectories|policies|policy|training|interactive|gate)/"
)
_INSIDE = re.compile(r"^-[ge]$|-[ge]\d{3}|/step-")
"""Also behind the beginning of a text: the position in a group's or an episode's id, the folder of a step."""
_PARSED = re.compile(r"v\(\\d|manifest\\?\.json")
"""Anywhere in a text: the folder of a version or its manifest, taken from a key by a pattern of its own."""
_EXAMPLES_FOR_PEOPLE = ("ckpt-…", "traj-…")


def _texts(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """(line, text, whether a string begins with it) of all that is no docstring; of f-strings the constant
    parts."""
    documented = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    alone = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }  # strings below attributes document them
    inside = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values[1:]
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in documented | alone:
                yield node.lineno, text, id(node) not in inside


def _spelled_in(source: str) -> list[str]:
    found = (
        f"{line}: {text[:60]!r}"
        for line, text, begins in _texts(parsed(source))
        if (begins and _SPELLED.match(text)) or _INSIDE.search(text) or _PARSED.search(text)
    )
    return [one for one in found if not any(shown in one for shown in _EXAMPLES_FOR_PEOPLE)]


def test_no_other_module_spells_an_id() -> None:
    trees = ("services", "libs", "benchmarks", "examples")
    files = [path for tree in trees for path in sorted((ROOT / tree).rglob("*.py"))]
    owned = [
        path for path in files if not path.is_relative_to(_OWNER) and not path.is_relative_to(_GENERATED)
    ]
    found = [f"{path.relative_to(ROOT)}:{one}" for path in owned for one in _spelled_in(path.read_text())]
    assert not found, "make these with libs/identities:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        'f"episode.outcome/{e}"',
        'x = "traj-" + e',
        'f"up.evt.{v}"',
        'key = f"policy/{model}/v1"',
        'f"{run}-g{index:05d}"',
        'f"{group}-e{member:03d}-a0"',
        'f"{line}/step-{step:08d}"',
        'x = "run-1-g00001"',
        'f"gate/{checkpoint}/{attempt}"',
        r"""re.compile(r"/v(\d{8,})/manifest\.json$")""",
    ],
)
def test_the_check_finds_a_spelled_id(source: str) -> None:
    assert _spelled_in(source)


@pytest.mark.parametrize(
    "source",
    ['"""ckpt- ids are made elsewhere."""', 'f"{a}up.b"', '"upcycle up"', '"runs.x"', '"two-engines"'],
)
def test_the_check_leaves_other_texts_alone(source: str) -> None:
    assert not _spelled_in(source)
