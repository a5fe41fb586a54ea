"""Logs: a break-in is found among noise, followed through three logs, and closed."""

import random
from dataclasses import dataclass
from typing import Final

from ..machine.state import HOME, Computer, Process, StoredTable, User
from ..problems import Category, ComputerProblem, Deed, Goal, Plan, Want, mailed, opened, shell, written
from .common import PEOPLE, RULES, is_at, is_sent, page

_AUTH, _WEB, _BLOCKED = "/var/log/auth.log", "/var/log/web.log", "/etc/firewall/blocked.txt"
MIN_FAILURES: Final = 5


@dataclass(frozen=True, slots=True)
class _Breach:
    """since: the time of the login that should not have been. records: what was exported after it."""

    account: str
    address: str
    since: str
    records: tuple[str, ...]
    pid: str


def _clock(minute: int) -> str:
    return f"2026-03-01 {minute // 60:02d}:{minute % 60:02d}"


def _address(rng: random.Random, start: str) -> str:
    return f"{start}.{rng.randrange(2, 250)}.{rng.randrange(2, 250)}"


def _attempts(
    account: str, address: str, minute: int, failures: int, succeeds: bool
) -> list[tuple[int, str]]:
    lines = [(minute + at, f"login failed {account} from {address}") for at in range(failures)]
    return [*lines, (minute + failures, f"login ok {account} from {address}")] if succeeds else lines


def _auth(rng: random.Random, people: list[str], breach: _Breach, office: str) -> list[tuple[int, str]]:
    """The break-in; one who mistyped in the office; one who was tried and held; and who came in at once."""
    since = int(breach.since[11:13]) * 60 + int(breach.since[14:16])
    lines = _attempts(breach.account, breach.address, since - 7, 7, True)
    lines += _attempts(people[1], _address(rng, office), since - 90, 6, True)
    lines += _attempts(people[2], _address(rng, "203.0"), since - 45, 9, False)
    lines += _attempts(people[3], _address(rng, "198.51"), since + 20, 2, True)
    for one in people:
        lines += _attempts(one, _address(rng, office), rng.randrange(300, since - 100), 0, True)
    return lines


def _web(rng: random.Random, people: list[str], breach: _Breach) -> list[tuple[int, str]]:
    since = int(breach.since[11:13]) * 60 + int(breach.since[14:16])
    lines = [
        (since + 3 + at * 4, f"{breach.account} export record {one}") for at, one in enumerate(breach.records)
    ]
    lines += [
        (since - 200 + at * 7, f"{breach.account} export record {rng.randrange(100, 499)}") for at in range(3)
    ]
    lines += [
        (since + 5 + at * 5, f"{breach.account} view record {rng.randrange(100, 499)}") for at in range(3)
    ]
    for one in people[1:]:
        for _ in range(4):
            verb = rng.choice(("view", "export", "view"))
            lines.append((rng.randrange(300, 1300), f"{one} {verb} record {rng.randrange(100, 499)}"))
    return lines


def _log(lines: list[tuple[int, str]]) -> str:
    return page(*(f"{_clock(minute)} {line}" for minute, line in sorted(lines)))


def _procedure(office: str, path: str, subject: str) -> str:
    return page(
        f"Break-ins. A login is one if it follows at least {MIN_FAILURES} failures of the same account "
        f"from the same "
        f"address, and the address is not of the office ({office}.x.x). Logs: {_AUTH}, {_WEB}.",
        f"1. Write {path} of four lines: `account: NAME`, `address: ADDRESS`, `since: DAY TIME` (of that "
        f"login), "
        "`records: N, N` (all that the account exported since then, ascending).",
        f"2. Add the address to the end of {_BLOCKED}, on a line of its own.",
        "3. Lock the account, and kill its process `session` on this machine; no other.",
        f"4. Write to the address of the account's manager (table Owners), subject {subject}; the text is "
        f"NAME alone.",
    )


def _report(breach: _Breach) -> str:
    return page(
        f"account: {breach.account}",
        f"address: {breach.address}",
        f"since: {breach.since}",
        f"records: {', '.join(breach.records)}",
    )


def make(rng: random.Random) -> ComputerProblem:
    people = rng.sample(PEOPLE, 6)
    office = f"10.{rng.randrange(1, 99)}"
    records = tuple(str(one) for one in sorted(rng.sample(range(500, 999), rng.randrange(3, 5))))
    since = _clock(rng.randrange(800, 1200))
    breach = _Breach(people[0], _address(rng, "203.0"), since, records, str(rng.randrange(2000, 2999)))
    machine = Computer()
    machine.put(_AUTH, _log(_auth(rng, people, breach, office)), owner="root")
    machine.put(_WEB, _log(_web(rng, people, breach)), owner="root")
    blocked = page(*sorted(_address(rng, "192.0") for _ in range(3)))
    machine.put(_BLOCKED, f"{blocked}\n", owner="root")
    machine.put(f"{HOME}/reports/2025.txt", "quiet")
    machine.users = {one: User(one.title(), ["staff"]) for one in people}
    machine.groups = ["staff"]
    for number, one in enumerate(people[1:4]):
        machine.processes[str(3100 + number)] = Process(one, f"session {one}")
    machine.processes[breach.pid] = Process(breach.account, f"session {breach.account}")
    managers = {one: f"{people[at - 1]}.lead@ours.com" for at, one in enumerate(people)}
    machine.tables = {"Owners": StoredTable(["account", "manager"], sorted(map(list, managers.items())))}
    path, subject = (
        f"{HOME}/reports/{rng.choice(('breach', 'case', 'finding'))}.txt",
        rng.choice(("Locked", "Break-in")),
    )
    machine.pages = {"security/break-ins": _procedure(office, path, subject), "security/badges": "Wear them."}
    report = _report(breach)
    closed = (Want(f"user:{breach.account}", {"locked": "yes"}), Want(f"process:{breach.pid}", None))
    goals = (
        Goal("report", (is_at(path, report),)),
        Goal("address", (is_at(_BLOCKED, page(blocked, breach.address)),)),
        Goal("account", closed),
        Goal("mail", (is_sent(managers[breach.account], subject, breach.account),), ("account",)),
    )
    text = (
        "Somebody broke into an account yesterday. Find out which, and do what page security/break-ins of "
        f"the intranet says. {RULES}"
    )
    notice = mailed(managers[breach.account], subject, breach.account)
    acts = [Deed((written(path, report), shell(f"cat {path}"))), Deed(notice)]
    return ComputerProblem(text, machine, goals, _plan(breach, acts))


def _plan(breach: _Breach, acts: list[Deed]) -> tuple[Deed, ...]:
    plan = Plan()
    plan.look(*opened("browser", "link:security/break-ins"), *opened("tables", "table:Owners"))
    plan.look(shell("ls -l /var/log"), shell(f"grep failed {_AUTH}"), shell(f"grep ok {_AUTH}"))
    plan.look(shell(f"grep {breach.address} {_AUTH}"), shell(f"grep '{breach.account} export' {_WEB}"))
    plan.look(shell("ps"), shell(f"cat {_BLOCKED}"))
    plan.deeds.append(acts[0])
    plan.act(shell(f"echo {breach.address} >> {_BLOCKED}"))
    plan.act(shell(f"passwd -l {breach.account}"), shell(f"kill {breach.pid}"))
    plan.deeds.append(acts[1])
    return tuple(plan.deeds)


LOGS = Category("logs", make)
