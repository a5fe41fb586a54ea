"""Import a Python file by its path: once per process, and as a member of its package where it has one."""

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from upcycle.errors import DefinitionError, UnknownName


def load_module(path: Path) -> ModuleType:
    """Import a Python file once per process.

    A file inside a package is imported by its dotted name, with the folder of the topmost package importable.
    A file in a plain folder gets a name derived from its path, and its folder is importable from it, as with
    `python file.py`. Raises UnknownName for a missing file; whatever the file itself raises propagates.
    """
    resolved = path.resolve()
    if not resolved.is_file():
        raise UnknownName(f"no such file: {path}", "give the path of the Python file that declares it")
    loaded = _already_loaded(resolved)
    if loaded is not None:
        return loaded
    root, dotted = package_of(resolved)
    if root is not None:
        _make_importable(root)
        return importlib.import_module(dotted)
    name = f"upcycle_loaded_{resolved.stem}_{hashlib.sha256(str(resolved).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise DefinitionError(f"{path} is not a Python file", "environments are declared in .py files")
    module = importlib.util.module_from_spec(spec)
    _make_importable(resolved.parent)
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
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
