"""Commands over files and folders."""

import fnmatch
import re
from typing import Final

from ..errors import CommandFailed
from ..machine import paths
from ..machine.state import Computer, File
from .command import Command
from .parsing import options

_BITS: Final = {"r": 4, "w": 2, "x": 1}


def pwd(machine: Computer, args: list[str], given: str) -> str:
    return f"{machine.folder}\n"


def cd(machine: Computer, args: list[str], given: str) -> str:
    path = paths.resolve(machine, args[0] if args else "~")
    if paths.file_at(machine, path).text is not None:
        raise CommandFailed(f"{args[0]}: is no folder")
    machine.folder = path
    return ""


def ls(machine: Computer, args: list[str], given: str) -> str:
    found, names = options(args, "laR1h")
    lines = []
    for name in names or ["."]:
        path = paths.resolve(machine, name)
        if paths.file_at(machine, name).text is not None:
            lines.append(_listed(name, machine.files[path], found))
            continue
        lines += [f"{name}:"] * (len(names) > 1)
        listed = paths.below(machine, path) if "R" in found else paths.inside(machine, path)
        start = len(path.rstrip("/")) + 1
        shown = [one for one in listed if "a" in found or not one.rpartition("/")[2].startswith(".")]
        lines += [_listed(one[start:], machine.files[one], found) for one in shown]
    return "".join(f"{line}\n" for line in lines)


def _listed(name: str, file: File, found: dict[str, str]) -> str:
    shown = f"{name}/" if file.text is None else name
    if "l" not in found:
        return shown
    size = 0 if file.text is None else len(file.text)
    return f"{file.mode} {file.owner:8} {size:6} {file.day} {shown}"


def find(machine: Computer, args: list[str], given: str) -> str:
    places = []
    while args and not args[0].startswith("-"):
        places.append(args[0])
        args = args[1:]
    if len(args) % 2:
        raise CommandFailed("usage: find [FOLDER...] [-name PATTERN] [-type f|d] [-user NAME] [-perm MODE]")
    tests = list(zip(args[::2], args[1::2], strict=True))
    for name, _ in tests:
        if name not in ("-name", "-type", "-user", "-perm"):
            raise CommandFailed(f"{name}: known are -name, -type, -user, -perm")
    found = []
    for place in places or ["."]:
        paths.file_at(machine, place)
        path = paths.resolve(machine, place)
        found += [one for one in [path, *paths.below(machine, path)] if _passes(machine, one, tests)]
    return "".join(f"{one}\n" for one in found)


def _passes(machine: Computer, path: str, tests: list[tuple[str, str]]) -> bool:
    file = machine.files[path]
    seen = {"-type": "d" if file.text is None else "f", "-user": file.owner, "-perm": file.mode}
    name = path.rpartition("/")[2]
    return all(
        fnmatch.fnmatchcase(name, value) if test == "-name" else seen[test] == value for test, value in tests
    )


def mkdir(machine: Computer, args: list[str], given: str) -> str:
    found, names = options(args, "p")
    for name in _some(names, "mkdir [-p] FOLDER..."):
        paths.make_folder(machine, name, with_parents="p" in found)
    return ""


def touch(machine: Computer, args: list[str], given: str) -> str:
    for name in _some(args, "touch FILE..."):
        if paths.resolve(machine, name) not in machine.files:
            paths.write(machine, name, "")
    return ""


def rm(machine: Computer, args: list[str], given: str) -> str:
    found, names = options(args, "rRf")
    is_deep = "r" in found or "R" in found
    chosen = []
    for name in _some(names, "rm [-r] [-f] PATH..."):
        path = paths.resolve(machine, name)
        if path not in machine.files and "f" in found:
            continue
        if paths.file_at(machine, name).text is None and not is_deep:
            raise CommandFailed(f"{name}: is a folder; -r removes it with all that is in it")
        if path == "/":
            raise CommandFailed("/ stays")
        chosen.append(path)
    for path in chosen:
        paths.remove(machine, path)
    return ""


def rmdir(machine: Computer, args: list[str], given: str) -> str:
    for name in _some(args, "rmdir FOLDER..."):
        path = paths.resolve(machine, name)
        if paths.file_at(machine, name).text is not None or paths.inside(machine, path):
            raise CommandFailed(f"{name}: is no empty folder")
        del machine.files[path]
    return ""


def _put(machine: Computer, args: list[str], *, keep: bool) -> str:
    found, names = options(args, "rRfpavn")
    if len(names) < 2:
        raise CommandFailed("usage: FROM... TO")
    sources, target = names[:-1], paths.resolve(machine, names[-1])
    into = target in machine.files and machine.files[target].text is None
    if len(sources) > 1 and not into:
        raise CommandFailed(f"{names[-1]}: is no folder")
    for name in sources:
        source = paths.resolve(machine, name)
        is_folder = paths.file_at(machine, name).text is None
        if keep and is_folder and not {"r", "R", "a"} & set(found):
            raise CommandFailed(f"{name}: is a folder; -r copies it with all that is in it")
        end = f"{target.rstrip('/')}/{source.rpartition('/')[2]}" if into else target
        paths.transfer(machine, source, end, keep=keep)
    return ""


def mv(machine: Computer, args: list[str], given: str) -> str:
    return _put(machine, args, keep=False)


def cp(machine: Computer, args: list[str], given: str) -> str:
    return _put(machine, args, keep=True)


def chmod(machine: Computer, args: list[str], given: str) -> str:
    names = args[1:] if args and args[0] != "-R" else args[2:]
    mode = args[0] if args and args[0] != "-R" else "".join(args[1:2])
    chosen = _chosen(machine, names, "chmod [-R] MODE PATH...", is_deep=args[:1] == ["-R"])
    modes = [new_mode(machine.files[path].mode, mode) for path in chosen]
    for path, new in zip(chosen, modes, strict=True):
        machine.files[path].mode = new
    return ""


def new_mode(before: str, change: str) -> str:
    """A mode after `640` or `g+w,o-rwx`. Raises CommandFailed."""
    if re.fullmatch(r"[0-7]{3}", change):
        return change
    digits = [int(one) for one in before]
    for part in change.split(","):
        found = re.fullmatch(r"([ugoa]*)([+=-])([rwx]*)", part)
        if found is None:
            raise CommandFailed(f"{change[:40]!r} is no mode; write 640 or g+w,o-rwx")
        bits = sum(_BITS[one] for one in set(found[3]))
        for at, letter in enumerate("ugo"):
            if letter in found[1] or "a" in found[1] or not found[1]:
                now = digits[at]
                digits[at] = {"+": now | bits, "-": now & ~bits, "=": bits}[found[2]]
    return "".join(map(str, digits))


def chown(machine: Computer, args: list[str], given: str) -> str:
    found, rest = options(args, "R")
    chosen = _chosen(machine, rest[1:], "chown [-R] USER PATH...", is_deep="R" in found)
    owner = rest[0].split(":")[0]
    known = {*machine.users, *(one.user for one in machine.services.values()), "root", "ana"}
    if owner not in known:
        raise CommandFailed(f"{owner[:40]!r}: no such user")
    for path in chosen:
        machine.files[path].owner = owner
    return ""


def _chosen(machine: Computer, names: list[str], usage: str, *, is_deep: bool) -> list[str]:
    found = []
    for name in _some(names, usage):
        paths.file_at(machine, name)
        path = paths.resolve(machine, name)
        found += [path, *(paths.below(machine, path) if is_deep else [])]
    return found


def _some(names: list[str], usage: str) -> list[str]:
    if not names:
        raise CommandFailed(f"usage: {usage}")
    return names


FILE_COMMANDS: Final[dict[str, Command]] = {
    "pwd": pwd, "cd": cd, "ls": ls, "find": find, "mkdir": mkdir, "touch": touch, "rm": rm, "rmdir": rmdir,
    "mv": mv, "cp": cp, "chmod": chmod, "chown": chown,
}  # fmt: skip
