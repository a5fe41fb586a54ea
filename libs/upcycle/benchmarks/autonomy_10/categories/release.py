"""Release: packages get the versions that their changes ask for, and are published in order."""

import random
from dataclasses import dataclass
from typing import Final

from ..machine.state import Computer, Mail, Package, StoredTable
from ..problems import Category, ComputerProblem, Deed, Goal, Plan, Want, opened, shell, written
from .common import RULES, is_at, page

_NAMES: Final = ("atlas", "beacon", "cobalt", "dune", "echo", "flint", "grove")
_KINDS: Final = ("breaking", "feature", "fix")
_NUM_RELEASED: Final = 3


@dataclass(frozen=True, slots=True)
class _Release:
    """before, after: versions. changes: their numbers. needs: the file NEEDS as it is to be."""

    name: str
    before: str
    after: str
    changes: tuple[str, ...]
    needs: str
    is_needs_new: bool

    @property
    def folder(self) -> str:
        return f"/srv/packages/{self.name}"


def _bumped(version: str, kind: str) -> str:
    major, minor, patch = map(int, version.split("."))
    return {
        "breaking": f"{major + 1}.0.0",
        "feature": f"{major}.{minor + 1}.0",
        "fix": f"{major}.{minor}.{patch + 1}",
    }[kind]


def _rules() -> str:
    return page(
        "Releases. A package is released if all its changes of this week (table Changes) are merged. If "
        "one of them "
        "is open, it is held instead (pkg hold) and stays as it is; one without changes stays, too.",
        "The version: breaking adds one to the first number, feature to the second, fix to the third; "
        "those after it "
        "become 0. The gravest change decides, once.",
        "Before a package is built: its VERSION has the new version; a line `VERSION: NUMBERS` is added "
        "to the end of "
        "its CHANGELOG, with the numbers of its changes, ascending, such as `1.2.0: 14, 17`;",
        "and where it needs a package that is released now with a breaking change, its NEEDS asks for the "
        "new version "
        "of that, and for what it asked before of all others.",
        "Then pkg build and pkg publish, first what others need. A change that a mail takes back does not "
        "count.",
    )


def _releases(rng: random.Random, names: list[str], rows: list[list[str]]) -> list[_Release]:
    """A chain: each needs the one before it. Their merged changes go to the rows."""
    found: list[_Release] = []
    kinds = [rng.choice(_KINDS) for _ in names]
    kinds[0] = "breaking"
    for name, kind in zip(names, kinds, strict=True):
        before = f"{rng.randrange(1, 4)}.{rng.randrange(1, 9)}.{rng.randrange(1, 9)}"
        numbers = [str(len(rows) + 40), str(len(rows) + 41)]
        rows.append([numbers[0], name, kind, "merged"])
        rows.append([numbers[1], name, rng.choice(_KINDS[_KINDS.index(kind) :]), "merged"])
        needs, is_new = "", False
        if found:
            above = found[-1]
            is_new = kinds[len(found) - 1] == "breaking"
            needs = f"{above.name} >= {above.after if is_new else above.before}"
        found.append(_Release(name, before, _bumped(before, kind), tuple(numbers), needs, is_new))
    return found


def _machine(releases: list[_Release], others: list[str]) -> Computer:
    machine = Computer()
    for at, one in enumerate(releases):
        old = f"{releases[at - 1].name} >= {releases[at - 1].before}" if at else ""
        _put(machine, one.name, one.before, old)
    for name in others:
        _put(machine, name, "1.1.0", f"{releases[0].name} >= {releases[0].before}")
    return machine


def _put(machine: Computer, name: str, version: str, needs: str) -> None:
    folder = f"/srv/packages/{name}"
    machine.packages[name] = Package(folder, version, version)
    machine.put(f"{folder}/VERSION", version)
    machine.put(f"{folder}/NEEDS", needs)
    machine.put(f"{folder}/CHANGELOG", f"{version}: 3, 9\n")
    machine.put(f"{folder}/main.src", f"code of {name}")


def _goal(one: _Release) -> Goal:
    log = f"{one.before}: 3, 9\n{one.after}: {', '.join(one.changes)}"
    wants = [is_at(f"{one.folder}/VERSION", one.after), is_at(f"{one.folder}/CHANGELOG", log)]
    wants += [Want(f"package:{one.name}", {"published": one.after})]
    wants += [is_at(f"{one.folder}/NEEDS", one.needs)] if one.is_needs_new else []
    return Goal(one.name, tuple(wants))


def make(rng: random.Random) -> ComputerProblem:
    names = rng.sample(_NAMES, 6)
    chain, (held, quiet, undone) = names[:_NUM_RELEASED], names[_NUM_RELEASED:]
    rows: list[list[str]] = []
    releases = _releases(rng, chain, rows)
    rows.append([str(len(rows) + 40), held, rng.choice(_KINDS), "merged"])
    rows.append([str(len(rows) + 40), held, rng.choice(_KINDS), "open"])
    rows.append([str(len(rows) + 40), undone, rng.choice(_KINDS), "merged"])
    taken_back = rows[-1][0]
    shown = rng.sample(rows, len(rows))
    machine = _machine(releases, [held, quiet, undone])
    machine.tables = {"Changes": StoredTable(["change", "package", "kind", "state"], shown)}
    machine.receive(
        Mail("dev@ours.com", "ana", "Sorry", f"I take change {taken_back} back, it comes next week.")
    )
    machine.receive(Mail("dev@ours.com", "ana", "Cake", "In the kitchen."))
    machine.pages = {"dev/releases": _rules(), "dev/style": "Write plainly."}
    goals = (
        *map(_goal, releases),
        Goal("held", (Want(f"package:{held}", {"held": "yes"}),), (releases[0].name,)),
    )
    text = (
        "Release this week's packages as page dev/releases of the intranet says. Their folders lie in "
        "/srv/packages; "
        f"the developers also wrote mails. {RULES}"
    )
    return ComputerProblem(text, machine, goals, _plan(releases, held))


def _plan(releases: list[_Release], held: str) -> tuple[Deed, ...]:
    plan = Plan()
    plan.look(*opened("browser", "link:dev/releases"), *opened("tables", "table:Changes"))
    plan.look(
        *opened("mail", "folder:Inbox", "m01"), shell("pkg list"), shell("cat /srv/packages/*/CHANGELOG")
    )
    for one in releases:
        plan.look(shell(f"pkg info {one.name}"))
        needs = [written(f"{one.folder}/NEEDS", one.needs)] if one.is_needs_new else []
        plan.act(
            written(f"{one.folder}/VERSION", one.after),
            shell(f"echo '{one.after}: {', '.join(one.changes)}' >> {one.folder}/CHANGELOG"),
            *needs,
            shell(f"pkg build {one.name}"),
            shell(f"pkg publish {one.name}"),
        )
    plan.act(shell(f"pkg hold {held}"))
    return tuple(plan.deeds)


RELEASE = Category("release", make)
