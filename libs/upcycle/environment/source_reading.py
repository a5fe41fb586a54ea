"""What one Python file refers to, as its text says: the modules it imports, the data it declares."""

import ast
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from upcycle.errors import SourceRefused
from upcycle.modules import package_of

MAX_PARSED_BYTES: Final = 2 << 20
"""A longer file is data in Python's clothes, and its imports are not followed."""
_PARSING: Final = threading.Lock()
"""Of two threads that build trees at once in CPython 3.11, one may get a SystemError: they count their depth
together (python/cpython issue 106905)."""


@dataclass(frozen=True, slots=True)
class References:
    """modules: dotted names as imported from the root. data: paths, relative to the file."""

    modules: tuple[str, ...] = ()
    data: tuple[str, ...] = ()


def references_of(content: bytes, path: Path, root: Path) -> References:
    """What a file refers to; nothing for one that does not parse. Raises SourceRefused for `data` that is no
    literal."""
    if len(content) > MAX_PARSED_BYTES:
        return References()
    try:
        with _PARSING:
            tree = ast.parse(content)
        nodes = list(ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return References()  # loading it says what is wrong, with its line
    package = _package_name(path, root)
    modules = {name: None for node in nodes for name in _imported(node, package)}
    classes = _environment_names(nodes)
    data = {name: None for node in nodes for name in _declared(node, classes, path)}
    return References(tuple(modules), tuple(data))


def _package_name(path: Path, root: Path) -> str:
    """The dotted package that relative imports of a file start from; "" outside any package."""
    if package_of(path)[0] is None:
        return ""
    return ".".join(path.parent.relative_to(root).parts)


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(node, package)
        if base:
            yield base
        for alias in node.names:
            if alias.name != "*":  # of a package it may be a submodule
                yield f"{base}.{alias.name}" if base else alias.name


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    kept = parts[: len(parts) - node.level + 1]
    return ".".join([*kept, node.module] if node.module else kept)


def _environment_names(nodes: list[ast.AST]) -> set[str]:
    """Names under which a file has the class Environment."""
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name for node in imports for alias in node.names if alias.name == "Environment"
    }


def _declared(node: ast.AST, classes: set[str], path: Path) -> Iterator[str]:
    if not isinstance(node, ast.Call):
        return
    called = node.func
    is_class = (isinstance(called, ast.Name) and called.id in classes) or (
        isinstance(called, ast.Attribute) and called.attr == "Environment"
    )
    for keyword in node.keywords if is_class else ():
        if keyword.arg == "data":
            yield from _literal(keyword.value, path)


def _literal(node: ast.expr, path: Path) -> tuple[str, ...]:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        value = None
    if isinstance(value, list | tuple) and all(isinstance(name, str) and name for name in value):
        return tuple(value)
    raise SourceRefused(
        f"{path}:{node.lineno}: data of Environment is not written as a list of paths",
        'it is read before the file runs: write data=["cases.json", "fixtures"]',
    )
