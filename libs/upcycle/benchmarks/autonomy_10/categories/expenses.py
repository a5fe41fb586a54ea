"""Expenses: claims in a table are decided by receipts in files and mails, limits and exceptions."""

import random
from dataclasses import dataclass
from typing import Final

from ..machine.state import HOME, Computer, Mail, StoredTable
from ..problems import Calls, Category, ComputerProblem, Deed, Goal, Plan, Want, noted, opened, shell, typed
from .common import PEOPLE, RULES, is_noted, page

_KINDS: Final = ("hotel", "meals", "travel", "books")
_CASES: Final = ("fine", "fine by exception", "over", "differs", "missing", "mailed")
"""What there is to each claim that is open; the last one's receipt is a mail."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """amount, receipt: in cents; receipt None: there is none."""

    number: str
    who: str
    kind: str
    amount: int
    receipt: int | None
    status: str
    is_mailed: bool = False


def _money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


def _claims(
    rng: random.Random, limits: dict[str, int], words: dict[str, str], known: dict[str, str]
) -> list[_Claim]:
    found = []
    people = rng.sample([one for one in PEOPLE if one not in known], len(_CASES))
    for number, case in enumerate(rng.sample(_CASES, len(_CASES))):
        who, kind = people[number], rng.choice(_KINDS)
        if case == "fine by exception":
            who, kind = rng.choice(list(known.items()))
        limit = limits[kind]
        amount = rng.randrange(limit // 3, limit)
        if case in ("over", "fine by exception"):
            amount = limit + rng.randrange(100, limit // 2)
        receipt = {"differs": amount - rng.randrange(50, 900), "missing": None}.get(case, amount)
        status = words[{"over": "over", "differs": "differs", "missing": "missing"}.get(case, "fine")]
        found.append(_Claim(f"C{30 + number}", who, kind, amount, receipt, status, case == "mailed"))
    return found


def _rules(words: dict[str, str], limits: dict[str, int], title: str) -> str:
    return page(
        "Expenses. The column status of an open claim becomes:",
        f"- {words['missing']} where there is no receipt, neither in ~/Receipts nor in the mail",
        f"- {words['differs']} where the receipt says another amount than the claim",
        f"- {words['over']} where it is above the limit of its kind: "
        + ", ".join(f"{kind} {_money(limit)}" for kind, limit in limits.items()),
        f"- {words['fine']} otherwise. Exceptions to limits are in Ana's note Exceptions.",
        "The first that applies counts. Amounts and decided claims stay.",
        f"Then write a note {title}: one line `paid: SUM`, the sum of the claims that became "
        f"{words['fine']}, such as "
        "`paid: 120.50`.",
    )


def _give_receipts(machine: Computer, rng: random.Random, claims: list[_Claim]) -> None:
    for one in claims:
        if one.receipt is not None and not one.is_mailed:
            text = page(
                "RECEIPT", f"{one.kind}, for {one.who}", f"claim {one.number}", f"total {_money(one.receipt)}"
            )
            machine.put(f"{HOME}/Receipts/{rng.randrange(10**5, 10**6)}.txt", text)
        elif one.receipt is not None:
            text = page("here is my receipt", f"claim {one.number}", f"total {_money(one.receipt)}")
            machine.receive(Mail(f"{one.who}@ours.com", "ana", "Sorry, late", text))


def make(rng: random.Random) -> ComputerProblem:
    limits = {kind: rng.randrange(60, 220) * 100 for kind in _KINDS}
    words = {
        "fine": rng.choice(("approved", "accepted", "pay")),
        "over": rng.choice(("rejected", "refused")),
        "differs": rng.choice(("query", "to clarify")),
        "missing": rng.choice(("no receipt", "incomplete")),
    }
    known = dict(zip(rng.sample(PEOPLE, 2), rng.sample(_KINDS, 2), strict=True))
    claims = _claims(rng, limits, words, known)
    machine = Computer()
    decided = [_decided(rng, n, words) for n in range(4)]
    rows = [[one.number, one.who, one.kind, _money(one.amount), "open"] for one in claims]
    machine.tables = {
        "Expenses": StoredTable(["claim", "who", "kind", "amount", "status"], [*decided, *rows])
    }
    _give_receipts(machine, rng, claims)
    machine.receive(Mail("news@ours.com", "ana", "Canteen", "Soup today."))
    title = rng.choice(("Paid claims", "Claims of today", "Expenses done"))
    machine.pages = {
        "finance/expenses": _rules(words, limits, title),
        "finance/year": "The year ends in June.",
    }
    machine.notes = {"Exceptions": page(*(f"{who}: no limit for {kind}" for who, kind in known.items()))}
    total = sum(one.amount for one in claims if one.status == words["fine"])
    wants = tuple(Want(f"row:Expenses/{one.number}", {"status": one.status}) for one in claims)
    report = f"paid: {_money(total)}"
    goals = (Goal("claims", wants), Goal("note", (is_noted(title, report),), ("claims",)))
    text = (
        f"Decide the open claims in the table Expenses as page finance/expenses of the intranet says. {RULES}"
    )
    return ComputerProblem(text, machine, goals, _plan(claims, noted(title, report)))


def _decided(rng: random.Random, number: int, words: dict[str, str]) -> list[str]:
    return [
        f"C{20 + number}",
        rng.choice(PEOPLE),
        rng.choice(_KINDS),
        _money(rng.randrange(900, 9000)),
        words["fine"],
    ]


def _plan(claims: list[_Claim], report: Calls) -> tuple[Deed, ...]:
    plan = Plan()
    plan.look(*opened("browser", "link:finance/expenses"))
    plan.look(*opened("notes", "note:Exceptions"), shell(f"cat {HOME}/Receipts/*.txt"))
    plan.look(*opened("mail", "folder:Inbox", "m01"))
    for number, one in enumerate(claims, 5):
        plan.act(*opened("tables", "table:Expenses", f"row:{number}"), typed("cell:status", one.status))
    plan.act(*report)
    return tuple(plan.deeds)


EXPENSES = Category("expenses", make)
