"""Import a Python file by its path: once per process, and as a member of its package where it has one.

Pinned sources are loaded from memory: what a process imports late is what it was started with, and bytecode
of an edit within the same second is not mistaken for it.
"""

import hashlib
import importlib
import importlib.util
import linecache
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

from upcycle.errors import DefinitionError, UnknownName
from upcycle.raised import exit_call, place_of

_PINNED: Final[dict[str, bytes]] = {}
"""Content by path, instead of what lies there."""
_PLAIN_FOLDERS: Final[set[Path]] = set()
"""Folders outside of any package from which files were loaded."""


def pin_sources(root: Path, files: Mapping[str, bytes]) -> None:
    """From now on this process loads these modules, given by path relative to root, with this content,
    whatever lies there by then; their lines in tracebacks too."""
    for name, content in files.items():
        if name.endswith(".py"):
            path = str(root / name)
            _PINNED[path] = content
            lines = content.decode("utf-8", "replace").splitlines(keepends=True)
            linecache.cache[path] = (len(content), None, lines, path)
    if not any(isinstance(finder, _PinnedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PinnedFinder())


class _PinnedLoader(SourceFileLoader):
    """Compiles pinned content; reads and writes no bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        """Of the pinned content."""
        return compile(_PINNED[self.path], self.path, "exec", dont_inherit=True)

    def get_data(self, path: str) -> bytes:
        """Pinned content, or of any other file what lies there."""
        pinned = _PINNED.get(path)
        return super().get_data(path) if pinned is None else pinned


class _PinnedFinder(MetaPathFinder):
    """Finds what the path finder finds, and pinned modules whose files are gone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for all but pinned modules."""
        found = PathFinder.find_spec(fullname, path)
        if found is not None:
            return _pinned_spec(fullname, found.origin) if found.origin in _PINNED else None
        last = fullname.rpartition(".")[2]
        for folder in sys.path if path is None else path:
            for file in (f"{folder}/{last}/__init__.py", f"{folder}/{last}.py"):
                if file in _PINNED:
                    return _pinned_spec(fullname, file)
        return None


def _pinned_spec(fullname: str, path: str | None) -> ModuleSpec | None:
    if path is None:
        return None
    is_package = path.endswith("/__init__.py")
    return importlib.util.spec_from_file_location(
        fullname,
        path,
        loader=_PinnedLoader(fullname, path),
        submodule_search_locations=[str(Path(path).parent)] if is_package else None,
    )


def load_module(path: Path) -> ModuleType:
    """Import a Python file once per process.

    A file inside a package is imported by its dotted name, with the folder of the topmost package importable.
    A file in a plain folder gets a name derived from its path, and its folder is importable from it, as with
    `python file.py`. Raises UnknownName for a missing file, and DefinitionError for one that
    ends the program; whatever else the file itself raises propagates. What it prints as it is loaded goes to
    standard error: standard output has a command's results alone.
    """
    resolved = path.resolve()
    if not resolved.is_file() and str(resolved) not in _PINNED:
        raise UnknownName(f"no such file: {path}", "give the path of the Python file that declares it")
    loaded = _already_loaded(resolved)
    if loaded is not None:
        return loaded
    try:
        with redirect_stdout(sys.stderr):
            return _loaded(path, resolved)
    except SystemExit as error:
        raise DefinitionError(
            f"{place_of(error) or path}: it called {exit_call(error)} as it was loaded",
            "raise an error instead of exiting, or put a program's own lines under "
            'if __name__ == "__main__":',
        ) from error


def _loaded(path: Path, resolved: Path) -> ModuleType:
    root, dotted = package_of(resolved)
    if root is not None:
        _make_importable(root)
        return importlib.import_module(dotted)
    name = f"upcycle_loaded_{resolved.stem}_{hashlib.sha256(str(resolved).encode()).hexdigest()[:12]}"
    loader = _PinnedLoader(name, str(resolved)) if str(resolved) in _PINNED else None
    spec = importlib.util.spec_from_file_location(name, resolved, loader=loader)
    if spec is None or spec.loader is None:
        raise DefinitionError(f"{path} is not a Python file", "environments are declared in .py files")
    module = importlib.util.module_from_spec(spec)
    _make_importable(resolved.parent)
    _forget_namesakes(resolved.parent)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _already_loaded(path: Path) -> ModuleType | None:
    # `tasks.py` doing `from env import env` and the fleet loading `env.py` by path must meet in one module:
    # two copies would declare two environments.
    for module in list(sys.modules.values()):
        origin = getattr(module, "__file__", None)
        if origin and module.__name__ != "__main__" and Path(origin).resolve() == path:
            return module
    return None


def package_of(path: Path) -> tuple[Path | None, str]:
    """(folder that holds the topmost package, dotted module name); (None, "") outside any package."""
    names = [] if path.name == "__init__.py" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    is_packaged = folder != path.parent
    return (folder, ".".join(names)) if is_packaged else (None, "")


def _make_importable(folder: Path) -> None:
    """First in the search: of two projects, each with its env.py, the one that is loaded means its own."""
    if str(folder) in sys.path:
        sys.path.remove(str(folder))
    sys.path.insert(0, str(folder))


def _forget_namesakes(folder: Path) -> None:
    """Let `import env` in a file of this folder find the env.py beside it, where another plain folder's was
    imported before. Who imported that one keeps it."""
    for name in [path.stem for path in folder.glob("*.py")]:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and Path(file).parent in _PLAIN_FOLDERS - {folder}:
            del sys.modules[name]
    _PLAIN_FOLDERS.add(folder)
