"""Entry: forms in files become rows of a table, with corrections by mail; some are known, some incomplete."""

import random
from dataclasses import dataclass, replace
from typing import Final

from ..machine.state import HOME, Computer, Mail, StoredTable
from ..problems import Calls, Category, ComputerProblem, Deed, Goal, Plan, Want, click, opened, shell, typed
from .common import PEOPLE, RULES, moved, page

_SCANS: Final = f"{HOME}/Scans"
_TOWNS: Final = ("Aachen", "Bergen", "Como", "Delft", "Elche", "Faro", "Gent", "Halle")
_PLANS: Final = {"B": "basic", "F": "family", "S": "student"}
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_COLUMNS: Final = ("email", "born", "town", "plan")


@dataclass(frozen=True, slots=True)
class _Form:
    """A form as it was filled in. missing: the field that is empty, if any."""

    path: str
    email: str
    born: tuple[int, int, int]
    town: str
    plan: str
    missing: str = ""

    @property
    def row(self) -> dict[str, str]:
        """As the table has it."""
        year, month, day = self.born
        values = (self.email, f"{year}-{month:02d}-{day:02d}", self.town, _PLANS[self.plan])
        return dict(zip(_COLUMNS, values, strict=True))

    @property
    def text(self) -> str:
        year, month, day = self.born
        fields = {
            "E-mail": self.email.upper(),
            "Born": f"{day} {_MONTHS[month - 1]} {year}",
            "Town": self.town.upper(),
            "Plan": f"[{self.plan}] of B/F/S",
        }
        return page(
            "MEMBERSHIP FORM", *(f"{name}: {'' if name == self.missing else fields[name]}" for name in fields)
        )


def _form(rng: random.Random, who: str, missing: str = "") -> _Form:
    born = (rng.randrange(1950, 2006), rng.randrange(1, 13), rng.randrange(1, 29))
    path = f"{_SCANS}/form-{rng.randrange(10**4, 10**5)}.txt"
    return _Form(path, f"{who}@mail.org", born, rng.choice(_TOWNS), rng.choice(list(_PLANS)), missing)


_RULES: Final = page(
    "Membership forms (~/Scans) go into the table Members, one row a form:",
    "- email in small letters; born as 1990-05-17; town with one capital; plan: B basic, F family, S student",
    "- A form with an empty field is not entered: it is moved to ~/Scans/returned.",
    "- A form of a member who is in the table already is not entered, and the row stays: it is moved to "
    "~/Scans/known.",
    "- The other forms stay where they are. Corrections that came by mail apply: to forms, and to rows of "
    "the table.",
)


def _others(rng: random.Random) -> list[_Form]:
    """Members that nothing is asked about, as many of each plan."""
    made = [_form(rng, f"{who}.{rng.randrange(10, 99)}") for who in rng.sample(PEOPLE, 9)]
    return [replace(one, plan=plan) for one, plan in zip(made, [*_PLANS] * 3, strict=True)]


def make(rng: random.Random) -> ComputerProblem:
    people = rng.sample(PEOPLE, 9)
    new = [_form(rng, who) for who in people[:3]]
    returned = [_form(rng, people[3], rng.choice(("Born", "Town", "Plan")))]
    known = [_form(rng, people[4])]
    members = [*(_form(rng, who) for who in people[4:]), *_others(rng)]
    machine = Computer()
    for one in rng.sample([*new, *returned, *known], 5):
        machine.put(one.path, one.text)
    machine.tables = {"Members": StoredTable(list(_COLUMNS), [list(one.row.values()) for one in members])}
    corrected, fixed = new[0], members[2]
    town = rng.choice([one for one in _TOWNS if one not in (corrected.town, fixed.town)])
    plan = rng.choice([one for one in _PLANS.values() if one != fixed.row["plan"]])
    machine.receive(Mail(corrected.email, "ana", "My form", f"I wrote the wrong town, it is {town}."))
    machine.receive(Mail("shop@mail.org", "ana", "Offer", "Everything for less."))
    machine.receive(Mail(fixed.email, "ana", "My membership", f"Please change my plan to {plan}."))
    machine.pages = {"members/forms": _RULES, "members/fees": "They rise in May."}
    rows = [one.row for one in new]
    rows[0]["town"] = town
    moves = {
        one.path: (f"{_SCANS}/{to}", one.text)
        for to, many in (("returned", returned), ("known", known))
        for one in many
    }
    goals = (
        *(Goal(f"form {at}", (_is_row(row),)) for at, row in enumerate(rows, 1)),
        Goal("correction", (Want(f"row:Members/{fixed.email}", {"plan": plan}),)),
        Goal("forms put away", _put_away(moves)),
    )
    text = (
        "Enter the membership forms in ~/Scans as page members/forms of the intranet says; people also "
        f"wrote mails. {RULES}"
    )
    fix = (*opened("tables", "table:Members", f"row:{members.index(fixed) + 1}"), typed("cell:plan", plan))
    putting = tuple(shell(f"mkdir -p {folder} && mv {path} {folder}") for path, (folder, _) in moves.items())
    return ComputerProblem(text, machine, goals, _plan(rows, fix, putting))


def _put_away(moves: dict[str, tuple[str, str]]) -> tuple[Want, ...]:
    """From (folder, text) by path."""
    named = ((path, f"{folder}/{path.rpartition('/')[2]}", text) for path, (folder, text) in moves.items())
    return tuple(want for one in named for want in moved(*one))


def _is_row(row: dict[str, str]) -> Want:
    return Want(f"row:Members/{row['email']}", row)


def _plan(rows: list[dict[str, str]], fix: Calls, putting: Calls) -> tuple[Deed, ...]:
    plan = Plan()
    plan.look(*opened("browser", "link:members/forms"), shell(f"cat {_SCANS}/*.txt"))
    plan.look(*opened("mail", "folder:Inbox", "m01", "back", "m03"))
    for row in rows:
        cells = tuple(typed(f"cell:{column}", value) for column, value in row.items())
        plan.act(*opened("tables", "table:Members", "new"), *cells, click("save"))
    plan.act(*fix)
    for call in putting:
        plan.act(call)
    return tuple(plan.deeds)


ENTRY = Category("entry", make)
