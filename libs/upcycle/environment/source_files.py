"""Which files judged an episode: the environment's file, the modules beside it that it imports, its data.

The files are found by reading, never by running: an edit is noticed before any code of it runs. Modules that
are found elsewhere, the standard library and installed packages, are not part of it. What is imported by a
name that only running tells is not found: declare it, `Environment("shop", data=["plugins"])`.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

from upcycle.environment.deployed import refuse_deployed
from upcycle.environment.source_reading import References, references_of
from upcycle.errors import SourceRefused
from upcycle.modules import package_of

_INSTALLED: Final = ("site-packages", "dist-packages")
_SKIPPED: Final = "__pycache__"
_LARGEST: Final = 3


@dataclass(frozen=True, slots=True)
class SourceLimits:
    """How much one environment's source may hold: files, bytes of one file, bytes of all."""

    num_files: int = 2_000
    file_bytes: int = 32 << 20
    total_bytes: int = 64 << 20


LIMITS: Final = SourceLimits()


@dataclass(frozen=True)
class SourceFiles:
    """An environment's source as it was read. root: the folder below which all of it lies. entry: the
    environment's file. files: content by path relative to root, in POSIX form."""

    root: Path
    entry: str
    files: Mapping[str, bytes]

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) over the entry, and path and content of every file; where root lies is not in it."""
        whole = hashlib.sha256(b"upcycle source 1\n" + self.entry.encode() + b"\n")
        for name in sorted(self.files):
            whole.update(hashlib.sha256(self.files[name]).hexdigest().encode() + b" " + name.encode() + b"\0")
        return whole.hexdigest()

    def holds(self, path: Path) -> bool:
        """Whether a file is part of this source."""
        return path.is_relative_to(self.root) and path.relative_to(self.root).as_posix() in self.files


def source_digest(path: Path | str) -> str:
    """Which code judges the episodes of the environment in this file. Raises SourceRefused."""
    return read_source(path).digest


def read_source(path: Path | str, limits: SourceLimits = LIMITS) -> SourceFiles:
    """Read the source of the environment in a file; nothing of it is run.

    A file that is not Python text (yet) counts with its bytes, and its imports are not followed. Raises
    SourceRefused, naming the file: missing, no regular file, a link that leaves the root, above the limits;
    and a `data` that is no literal.
    """
    refuse_deployed(path)
    entry = Path(path).resolve()
    package_root, _ = package_of(entry)
    root = package_root or entry.parent
    reader = _Reader(root, limits)
    is_installed = root.name in _INSTALLED
    package = entry.relative_to(root).parts[0] if package_root else entry.name
    waiting = [entry, *reader.packages_above(entry)]
    while waiting:
        found = waiting.pop()
        references = reader.take(found)
        for name in references.modules:
            if not is_installed or name.split(".")[0] == package:
                waiting += reader.unread(name)
        for data in references.data:
            reader.take_data(found, data)
    return SourceFiles(root, entry.relative_to(root).as_posix(), reader.files)


def largest_files(files: Mapping[str, bytes]) -> str:
    """Of a source that is too large: its three largest files, with their sizes."""
    largest = sorted(files, key=lambda name: (-len(files[name]), name))[:_LARGEST]
    return ", ".join(f"{name} ({len(files[name]):,} bytes)" for name in largest)


class _Reader:
    """Reads files below one root, each once, within the limits."""

    def __init__(self, root: Path, limits: SourceLimits) -> None:
        self._root = root
        self._limits = limits
        self._num_bytes = 0
        self.files: dict[str, bytes] = {}

    def take(self, path: Path) -> References:
        """Add a module; what it refers to."""
        name = path.relative_to(self._root).as_posix()
        if name in self.files:
            return References()
        content = self._add(path)
        return references_of(content, path, self._root) if path.suffix == ".py" else References()

    def take_data(self, declared_in: Path, data: str) -> None:
        """Add a declared data file, or all regular files of a declared folder."""
        path = declared_in.parent / data
        where = f"{declared_in}: data {data!r}"
        if Path(data).is_absolute() or not path.resolve().is_relative_to(self._root):
            raise SourceRefused(f"{where} is outside {self._root}", "copy it beside the environment")
        path = Path(os.path.normpath(path))
        if not path.exists():
            raise SourceRefused(f"{where}: no such file or folder", "its path is relative to that file")
        for file in _files_below(path) if path.is_dir() else (path,):
            if file.relative_to(self._root).as_posix() not in self.files:
                self._add(file)

    def packages_above(self, path: Path) -> list[Path]:
        """The `__init__.py` of each package that a file is in, below the root."""
        between = path.relative_to(self._root).parents
        return [self._root / folder / "__init__.py" for folder in between if str(folder) != "."]

    def unread(self, name: str) -> list[Path]:
        """Files that importing a dotted name runs, where they lie below the root and were not read yet."""
        found, folder = [], self._root
        for part in name.split("."):
            candidates = (folder / part / "__init__.py", folder / f"{part}.py", *_extensions(folder / part))
            found += [file for file in candidates if _exists(file)][:1]
            folder = folder / part
            if not folder.is_dir():
                break
        return [file for file in found if file.relative_to(self._root).as_posix() not in self.files]

    def _add(self, path: Path) -> bytes:
        if not path.resolve().is_relative_to(self._root):
            raise SourceRefused(
                f"{path} is a link to {path.resolve()}, outside {self._root}",
                "copy the file beside the environment, or install it as a package",
            )
        if len(self.files) >= self._limits.num_files:
            raise SourceRefused(
                f"{path}: the environment's source has more than {self._limits.num_files} files",
                "declare single files as data, or install its modules as a package",
            )
        content = _read(path, self._limits.file_bytes)
        self._num_bytes += len(content)
        if self._num_bytes > self._limits.total_bytes:
            largest = largest_files({**self.files, self._name(path): content})
            limit = self._limits.total_bytes
            raise SourceRefused(
                f"{path}: the environment's source is larger than {limit} bytes; its largest files: "
                f"{largest}",
                "leave large data out, and have the scenario read it from a store",
            )
        self.files[self._name(path)] = content
        return content

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()


def _read(path: Path, limit_bytes: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not block
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SourceRefused(f"{path} is not a regular file", "leave it out of the environment")
            content = file.read(limit_bytes + 1)
    except FileNotFoundError as error:
        raise SourceRefused(f"no such file: {path}") from error
    except OSError as error:
        raise SourceRefused(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > limit_bytes:
        raise SourceRefused(f"{path} is larger than {limit_bytes} bytes", "leave it out of the environment")
    return content


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != _SKIPPED)
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        for name in sorted([*names, *links]):  # a linked folder is not walked: reading it refuses it by name
            yield Path(parent) / name


def _extensions(stem: Path) -> list[Path]:
    return [stem.with_name(stem.name + suffix) for suffix in EXTENSION_SUFFIXES]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long is no file
        return False
