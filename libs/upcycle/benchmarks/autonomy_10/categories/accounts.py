"""Accounts: who joins, leaves or changes gets the account, the groups and the files that the rules say."""

import random
from dataclasses import dataclass
from typing import Final

from ..machine.state import Computer, Mail, StoredTable, User
from ..problems import Category, ComputerProblem, Deed, Goal, Plan, Want, opened, shell
from .common import PEOPLE, RULES, page

_LAST: Final = (
    "Adler",
    "Baum",
    "Conti",
    "Duval",
    "Engel",
    "Ferro",
    "Gallo",
    "Horak",
    "Ibsen",
    "Jansen",
    "Kovac",
    "Lund",
)
_ROLES: Final = ("sales", "support", "engineer", "analyst")
_GROUPS: Final = ("crm", "mailout", "tickets", "wiki", "deploy", "logs", "reports", "vpn", "printing")


@dataclass(frozen=True, slots=True)
class _Person:
    """account: made of the names by the rule."""

    first: str
    last: str
    role: str

    @property
    def account(self) -> str:
        return f"{self.first[0]}{self.last}".lower()

    @property
    def full_name(self) -> str:
        return f"{self.first.title()} {self.last}"


def _rules(groups: dict[str, list[str]]) -> str:
    return page(
        "Accounts. A name is the first letter of the first name and the last name, in small letters.",
        "Joiners: an account with the full name, and the groups of the role.",
        "Movers: the groups of the new role and no others.",
        "Leavers: the account is locked and in no group, its timed jobs are removed, and its files below "
        "/srv/projects "
        "belong to the account of its manager (table Staff). Accounts are never removed.",
        "A role has these groups:",
        *(f"- {role}: {', '.join(one)}" for role, one in groups.items()),
        "A person who is to leave later than today is left alone until then.",
    )


def _people(rng: random.Random) -> list[_Person]:
    firsts, lasts = rng.sample(PEOPLE, 10), rng.sample(_LAST, 10)
    return [_Person(first, last, rng.choice(_ROLES)) for first, last in zip(firsts, lasts, strict=True)]


def _machine(rng: random.Random, present: list[_Person], groups: dict[str, list[str]]) -> Computer:
    machine = Computer(groups=sorted(_GROUPS))
    for one in present:
        machine.users[one.account] = User(one.full_name, list(groups[one.role]))
        machine.cron[one.account] = [f"0 {rng.randrange(1, 6)} * * * /home/{one.account}/sync.sh"]
        for number in range(2):
            path = f"/srv/projects/{rng.choice(('north', 'south', 'west'))}/{one.account}-{number}.txt"
            machine.put(path, f"work of {one.full_name}", owner=one.account)
    rows = [
        [one.full_name, one.role, present[(at + 1) % len(present)].full_name]
        for at, one in enumerate(present)
    ]
    machine.tables = {"Staff": StoredTable(["name", "role", "manager"], sorted(rows))}
    machine.pages = {"it/accounts": _rules(groups), "it/printers": "Floor 2."}
    return machine


def _joins(person: _Person, groups: list[str]) -> tuple[Goal, Deed]:
    wants = [Want(f"user:{person.account}", {"full_name": person.full_name, "locked": "no"})]
    wants += [Want(f"member:{group}/{person.account}", {}) for group in groups]
    call = shell(f"useradd -c '{person.full_name}' -G {','.join(groups)} {person.account}")
    return Goal(f"{person.account} joined", tuple(wants)), Deed((call, shell(f"id {person.account}")))


def _moves(person: _Person, before: list[str], after: list[str]) -> tuple[Goal, Deed]:
    wants = [Want(f"member:{one}/{person.account}", None) for one in before if one not in after]
    wants += [Want(f"member:{one}/{person.account}", {}) for one in after if one not in before]
    call = shell(f"usermod -G {','.join(after)} {person.account}")
    return Goal(f"{person.account} moved", tuple(wants)), Deed((call, shell(f"id {person.account}")))


def _leaves(
    machine: Computer, person: _Person, manager: _Person, groups: list[str]
) -> tuple[Goal, list[Deed]]:
    name = person.account
    files = [path for path, file in machine.files.items() if file.owner == name and file.text is not None]
    wants = [Want(f"user:{name}", {"locked": "yes"}), Want(f"cron:{name}/{machine.cron[name][0]}", None)]
    wants += [Want(f"member:{group}/{name}", None) for group in groups]
    wants += [Want(f"file:{path}", {"owner": manager.account}) for path in files]
    deeds = [
        Deed((shell(f"passwd -l {name}"), shell(f"usermod -rG {','.join(groups)} {name}"))),
        Deed((shell(f"crontab -u {name} -r"),)),
        *(Deed((shell(f"chown {manager.account} {path}"),)) for path in files),
    ]
    return Goal(f"{name} left", tuple(wants)), deeds


def make(rng: random.Random) -> ComputerProblem:
    pairs = [sorted(rng.sample(_GROUPS, 3)) for _ in _ROLES]
    groups = dict(zip(_ROLES, pairs, strict=True))
    people = _people(rng)
    present, (joiner, second) = people[:8], people[8:]
    machine = _machine(rng, present, groups)
    leaver, manager, mover, later = present[0], present[1], present[3], present[5]
    role = rng.choice([one for one in _ROLES if groups[one] != groups[mover.role]])
    goals: list[Goal] = []
    deeds: list[Deed] = []
    for person in (joiner, second):
        goal, deed = _joins(person, groups[person.role])
        goals, deeds = [*goals, goal], [*deeds, deed]
    goal, deed = _moves(mover, groups[mover.role], groups[role])
    gone, leaving = _leaves(machine, leaver, manager, groups[leaver.role])
    goals, deeds = [*goals, goal, gone], [*deeds, deed, *leaving]
    begin = f"{joiner.full_name} ({joiner.role}) and {second.full_name} ({second.role}) begin today."
    for subject, said in (
        ("New colleagues", begin),
        ("A change", f"{mover.full_name} works in {role} from today."),
        ("Goodbye", f"{leaver.full_name} left on Friday. {later.full_name} leaves on 2026-03-31."),
    ):
        machine.receive(Mail("people@ours.com", "ana", subject, said))
    text = (
        "The people team wrote today's changes of staff by mail. Bring the accounts of this machine in "
        "line, as page "
        f"it/accounts of the intranet says. {RULES}"
    )
    return ComputerProblem(text, machine, tuple(goals), _plan(deeds, leaver.account))


def _plan(deeds: list[Deed], leaver: str) -> tuple[Deed, ...]:
    plan = Plan()
    plan.look(*opened("browser", "link:it/accounts"), *opened("mail", "folder:Inbox", "m01", "back", "m02"))
    plan.look(*opened("mail", "folder:Inbox", "m03"), *opened("tables", "table:Staff"))
    plan.look(
        shell("getent passwd"), shell(f"find /srv/projects -user {leaver}"), shell(f"crontab -l -u {leaver}")
    )
    plan.deeds += deeds
    return tuple(plan.deeds)


ACCOUNTS = Category("accounts", make)
