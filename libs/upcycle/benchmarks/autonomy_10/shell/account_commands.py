"""Commands over accounts and groups."""

import re
from typing import Final

from ..errors import CommandFailed
from ..machine.state import Computer, User
from .command import Command
from .parsing import options


def useradd(machine: Computer, args: list[str], given: str) -> str:
    found, rest = options(args, "m", "cG")
    if len(rest) != 1:
        raise CommandFailed("usage: useradd [-c 'FULL NAME'] [-G GROUP,GROUP] NAME")
    name = rest[0]
    if name in machine.users:
        raise CommandFailed(f"{name}: exists")
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,30}", name):
        raise CommandFailed(f"{name[:40]!r}: a name has 1 to 31 of a-z, 0-9, - and _")
    machine.users[name] = User(found.get("c", "")[:200], _groups(machine, found.get("G", "")))
    return ""


def usermod(machine: Computer, args: list[str], given: str) -> str:
    found, rest = options(args, "arLU", "Gc")
    if len(rest) != 1:
        raise CommandFailed("usage: usermod [-aG | -rG | -G GROUP,GROUP] [-L | -U] [-c 'FULL NAME'] NAME")
    user = _user(machine, rest[0])
    if "G" in found:
        named = _groups(machine, found["G"])
        if "a" in found:
            user.groups = [*user.groups, *(one for one in named if one not in user.groups)]
        elif "r" in found:
            user.groups = [one for one in user.groups if one not in named]
        else:
            user.groups = named
    if "L" in found or "U" in found:
        user.is_locked = "L" in found
    if "c" in found:
        user.full_name = found["c"][:200]
    return ""


def userdel(machine: Computer, args: list[str], given: str) -> str:
    _, rest = options(args, "r")
    for name in rest:
        _user(machine, name)
    for name in rest:
        machine.users.pop(name, None)
        machine.cron.pop(name, None)
    return ""


def passwd(machine: Computer, args: list[str], given: str) -> str:
    found, rest = options(args, "lu")
    if len(rest) != 1 or len(found) != 1:
        raise CommandFailed("usage: passwd -l | -u NAME")
    _user(machine, rest[0]).is_locked = "l" in found
    return ""


def ids(machine: Computer, args: list[str], given: str) -> str:
    shown = []
    for name in args or ["ana"]:
        user = _user(machine, name)
        state = "locked" if user.is_locked else "active"
        shown.append(f"{name} ({user.full_name}) {state}, groups: {', '.join(user.groups) or 'none'}\n")
    return "".join(shown)


def getent(machine: Computer, args: list[str], given: str) -> str:
    if not args or args[0] not in ("passwd", "group"):
        raise CommandFailed("usage: getent passwd | group [NAME]")
    if args[0] == "passwd":
        return ids(machine, args[1:] or sorted(machine.users), given)
    for name in args[1:]:
        _groups(machine, name)
    shown = []
    for group in args[1:] or machine.groups:
        members = sorted(name for name, user in machine.users.items() if group in user.groups)
        shown.append(f"{group}: {', '.join(members)}\n")
    return "".join(shown)


def _user(machine: Computer, name: str) -> User:
    if name not in machine.users:
        raise CommandFailed(f"{name[:40]!r}: no such user; getent passwd names them")
    return machine.users[name]


def _groups(machine: Computer, text: str) -> list[str]:
    named = [one for one in text.split(",") if one]
    for one in named:
        if one not in machine.groups:
            raise CommandFailed(f"{one[:40]!r}: no such group; getent group names them")
    return list(dict.fromkeys(named))


ACCOUNT_COMMANDS: Final[dict[str, Command]] = {
    "useradd": useradd, "usermod": usermod, "userdel": userdel, "passwd": passwd, "id": ids, "groups": ids,
    "getent": getent,
}  # fmt: skip
