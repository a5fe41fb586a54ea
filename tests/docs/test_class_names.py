"""One class name stands for one thing within a service or library."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.parsing import parsed

_ROOT = Path(__file__).parents[2]
_PACKAGES = sorted(
    path for tree in ("services", "libs") for path in (_ROOT / tree).iterdir() if path.is_dir()
)


def _classes(package: Path) -> Iterator[tuple[str, Path]]:
    for path in package.rglob("*.py"):
        if "api" not in path.relative_to(package).parts:
            tree = parsed(path.read_text())
            yield from ((node.name, path) for node in tree.body if isinstance(node, ast.ClassDef))


@pytest.mark.parametrize("package", _PACKAGES, ids=lambda path: path.name)
def test_no_two_public_classes_of_a_package_share_a_name(package: Path) -> None:
    places = defaultdict(list)
    for name, path in _classes(package):
        if not name.startswith("_"):
            places[name].append(str(path.relative_to(_ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
