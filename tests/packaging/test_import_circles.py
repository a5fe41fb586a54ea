"""No module of ours is imported by what it imports, directly or through others.

Imports inside functions count. Imports under TYPE_CHECKING do not: they never run.
"""

from collections.abc import Mapping
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]


def in_circles(imports: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """Modules that lie in a circle of imports, or between two, with what they import there.

    A module that imports none of the rest, or that none of the rest imports, is in no circle: it is taken
    away, until nothing changes.
    """
    left = set(imports)
    while True:
        imported = {other for module in left for other in imports[module] & left}
        staying = {module for module in left & imported if imports[module] & left}
        if staying == left:
            return {module: sorted(imports[module] & left) for module in sorted(left)}
        left = staying


def test_a_circle_is_found() -> None:
    assert in_circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}) == {
        "a": ["b"],
        "b": ["c"],
        "c": ["a"],
    }
    assert in_circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {}


def test_our_packages_import_one_another_in_no_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = (ROOT / "libs", ROOT / "services")
    for folder in folders:
        monkeypatch.syspath_prepend(str(folder))
    packages = sorted(path.parent.name for folder in folders for path in folder.glob("*/__init__.py"))
    graph = grimp.build_graph(*packages, cache_dir=None, exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert in_circles(imports) == {}
