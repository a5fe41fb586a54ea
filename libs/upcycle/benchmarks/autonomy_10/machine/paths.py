"""Files and folders of the simulated computer, by absolute paths."""

import fnmatch
from dataclasses import replace
from typing import Final

from ..errors import CommandFailed
from .state import HOME, TODAY, Computer, File

MAX_FILE_CHARS: Final = 100_000
MAX_FILES: Final = 2_000


def resolve(machine: Computer, text: str) -> str:
    """The absolute path that a text means in the shell's folder."""
    if text == "~" or text.startswith("~/"):
        text = HOME + text[1:]
    if not text.startswith("/"):
        text = f"{machine.folder}/{text}"
    parts: list[str] = []
    for part in text.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def parent_of(path: str) -> str:
    """The folder that a path is in."""
    return path.rpartition("/")[0] or "/"


def below(machine: Computer, folder: str) -> list[str]:
    """Everything below a folder, at any depth, by name."""
    start = "/" if folder == "/" else f"{folder}/"
    return sorted(path for path in machine.files if path.startswith(start) and path != folder)


def inside(machine: Computer, folder: str) -> list[str]:
    """What lies directly in a folder, by name."""
    return [path for path in below(machine, folder) if parent_of(path) == folder]


def file_at(machine: Computer, text: str) -> File:
    """A file or folder. Raises CommandFailed."""
    path = resolve(machine, text)
    if path not in machine.files:
        raise CommandFailed(f"{text}: no such file or folder")
    return machine.files[path]


def read(machine: Computer, text: str) -> str:
    """The text of a file. Raises CommandFailed."""
    found = file_at(machine, text).text
    if found is None:
        raise CommandFailed(f"{text}: is a folder")
    return found


def write(machine: Computer, text: str, content: str) -> None:
    """Write a file; its mode and owner stay. Raises CommandFailed."""
    path = resolve(machine, text)
    if len(content) > MAX_FILE_CHARS:
        raise CommandFailed(f"{text}: {len(content):,} characters; a file has at most {MAX_FILE_CHARS:,}")
    before = machine.files.get(path)
    if before is not None and before.text is None:
        raise CommandFailed(f"{text}: is a folder")
    if before is None:
        _need_room(machine, path, text)
    machine.files[path] = replace(before or File(""), text=content, day=TODAY)


def make_folder(machine: Computer, text: str, *, with_parents: bool) -> None:
    """Make a folder. Raises CommandFailed."""
    path = resolve(machine, text)
    if path in machine.files:
        if with_parents and machine.files[path].text is None:
            return
        raise CommandFailed(f"{text}: exists")
    above = parent_of(path)
    if with_parents and above not in machine.files:
        make_folder(machine, above, with_parents=True)
    _need_room(machine, path, text)
    machine.files[path] = File(None, "755")


def remove(machine: Computer, path: str) -> None:
    """Remove a path and all below it."""
    for one in [path, *below(machine, path)]:
        machine.files.pop(one, None)


def transfer(machine: Computer, source: str, target: str, *, keep: bool) -> None:
    """Move, or with keep copy, a path and all below it to another path. Raises CommandFailed."""
    if f"{target}/".startswith(f"{source}/"):
        raise CommandFailed(f"{source}: cannot be put into itself, {target}")
    _need_room(machine, target, target)
    moved = [source, *below(machine, source)]
    if len(machine.files) + len(moved) > MAX_FILES:
        raise CommandFailed(f"{target}: the disk holds at most {MAX_FILES:,} files")
    taken = machine.files.get(target)
    if taken is not None and (taken.text is None or machine.files[source].text is None):
        raise CommandFailed(f"{target}: exists")
    for path in moved:
        machine.files[target + path[len(source) :]] = replace(machine.files[path])
    if not keep:
        for path in moved:
            del machine.files[path]


def matching(machine: Computer, pattern: str) -> list[str]:
    """Paths that a pattern with * or ? names, as they are written in the pattern's form; no hidden ones."""
    path = resolve(machine, pattern)
    depth = path.count("/")
    found = [
        one
        for one in sorted(machine.files)
        if one.count("/") == depth and _matches(one.split("/"), path.split("/"))
    ]
    if pattern.startswith(("/", "~")):
        return found
    above = len(machine.folder.rstrip("/")) + 1
    return [one[above:] if one.startswith(machine.folder.rstrip("/") + "/") else one for one in found]


def _matches(names: list[str], patterns: list[str]) -> bool:
    return all(
        fnmatch.fnmatchcase(name, one) and (not name.startswith(".") or one.startswith("."))
        for name, one in zip(names, patterns, strict=True)
    )


def _need_room(machine: Computer, path: str, text: str) -> None:
    above = machine.files.get(parent_of(path))
    if above is None or above.text is not None:
        raise CommandFailed(f"{text}: there is no folder {parent_of(path)}")
    if len(machine.files) >= MAX_FILES:
        raise CommandFailed(f"{text}: the disk holds at most {MAX_FILES:,} files")
    if len(path) > 500 or not path.isprintable():
        raise CommandFailed(f"{text[:80]!r}: no name that a file may have")
