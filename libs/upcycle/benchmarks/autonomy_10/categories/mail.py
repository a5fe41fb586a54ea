"""Mail: an inbox is sorted by texts, by contracts of the senders, and by a calendar."""

import random
from dataclasses import dataclass
from typing import Final

from ..machine.state import Computer, Event, Mail, StoredTable
from ..problems import Calls, Category, ComputerProblem, Deed, Goal, Plan, Want, click, mailed, opened
from .common import PEOPLE, RULES, is_sent, page

_FIRMS: Final = ("aldo", "brisa", "cetus", "delfi", "ember", "folio", "gorse", "halma", "indus")
_SUBJECTS: Final = (
    "Question", "Quick one", "Following up", "Our account", "Today", "Please read", "About Monday",
    "Hello again", "From the team", "One more thing", "Re: call", "Update",
)  # fmt: skip
_OUTAGE: Final = ("nothing loads since this morning", "all our orders fail", "we cannot log in at all")
_BILLING: Final = (
    "the last invoice is too high",
    "please change our payment method",
    "we were charged twice",
)
_PASSWORD: Final = ("confirm your password on the page below", "send your password to keep the mailbox")
_THANKS: Final = ("thank you, everything works", "see you at the fair", "our new address comes soon")


@dataclass(frozen=True, slots=True)
class _Letter:
    """folder: where it belongs; "" for where it is."""

    mail: Mail
    folder: str
    is_flagged: bool = False


def _letters(rng: random.Random, tiers: dict[str, str], names: dict[str, str]) -> list[_Letter]:
    subjects = iter(rng.sample(_SUBJECTS, len(_SUBJECTS)))
    of = {tier: [firm for firm, one in tiers.items() if one == tier] for tier in ("gold", "silver")}

    def letter(firm: str, said: str, folder: str, *, is_flagged: bool = False, end: str = "com") -> _Letter:
        who, day = rng.choice(PEOPLE), f"2026-03-0{rng.randrange(1, 3)}"
        body = page("Hello,", f"{said}.", f"Regards, {who}")
        return _Letter(
            Mail(f"{who}@{firm}.{end}", "help@ours.com", next(subjects), body, day), folder, is_flagged
        )

    gold, silver = rng.sample(of["gold"], 3), rng.sample(of["silver"], 3)
    found = [
        letter(gold[0], rng.choice(_OUTAGE), names["urgent"], is_flagged=True),
        letter(gold[1], rng.choice(_OUTAGE), names["urgent"], is_flagged=True),
        letter(silver[0], rng.choice(_OUTAGE), names["support"]),
        letter(silver[1], rng.choice(_BILLING), names["billing"]),
        letter(gold[2], rng.choice(_PASSWORD), names["quarantine"], end="co"),
        *(letter(rng.choice(_FIRMS), said, "") for said in _THANKS),
        letter(silver[2], "we have an outage drill planned; nothing is wrong", ""),
    ]
    rng.shuffle(found)
    return found


def _routing(names: dict[str, str], subject: str) -> str:
    return page(
        "Routing of the support inbox. The subject does not count, the text does.",
        f"- Whose service is down: {names['urgent']} and flagged where the contract is gold, "
        f"{names['support']} where it is silver.",
        f"- Money: {names['billing']}.",
        f"- Who asks for a password from a domain that is not in the table Customers: {names['quarantine']}.",
        "- All others stay in the inbox.",
        f"Then write once to NAME@ours.com, NAME being who is on call today (calendar oncall), subject "
        f"{subject}; the text is the addresses of the senders of what is urgent, one a line, in the order of "
        "the alphabet.",
    )


def make(rng: random.Random) -> ComputerProblem:
    firms = rng.sample(_FIRMS, len(_FIRMS))
    tiers = {firm: "gold" if number < 4 else "silver" for number, firm in enumerate(firms)}
    names = {
        "urgent": rng.choice(("Urgent", "Now", "Priority")),
        "support": rng.choice(("Support", "Second line", "Helpdesk")),
        "billing": rng.choice(("Billing", "Accounts", "Money")),
        "quarantine": rng.choice(("Quarantine", "Suspicious", "Phishing")),
    }
    letters = _letters(rng, tiers, names)
    machine = Computer(mail_folders=["Inbox", "Archive", *sorted(names.values())])
    numbered = {machine.receive(one.mail): one for one in letters}
    rows = sorted([f"{firm}.com", tier, rng.choice(PEOPLE)] for firm, tier in tiers.items())
    machine.tables = {"Customers": StoredTable(["domain", "contract", "contact"], rows)}
    on_call, subject = rng.sample(PEOPLE, 2), rng.choice(("Urgent mail", "Down today", "For you"))
    for number, name in enumerate(on_call):
        day = f"2026-03-{number + 2:02d}"
        machine.events[f"e{number + 1:03d}"] = Event(
            "oncall", f"on call: {name}", day, "00:00", "23:59", name
        )
    machine.events["e003"] = Event("ana", "Dentist", "2026-03-02", "15:00", "16:00")
    machine.pages = {
        "support/routing": _routing(names, subject),
        "support/hours": "Support is open from 8 to 18.",
    }
    senders = "\n".join(sorted(one.mail.sender for one in letters if one.is_flagged))
    moved = {name: one for name, one in numbered.items() if one.folder}
    goals = (
        *_goals(moved, names),
        Goal("report", (is_sent(f"{on_call[0]}@ours.com", subject, senders),), (names["urgent"],)),
    )
    text = (
        f"Sort the support inbox as page support/routing of the intranet says, and do what it asks. {RULES}"
    )
    report = mailed(f"{on_call[0]}@ours.com", subject, senders)
    return ComputerProblem(text, machine, goals, _plan(moved, report))


def _goals(moved: dict[str, _Letter], names: dict[str, str]) -> list[Goal]:
    wants = {
        name: Want(f"mail:{name}", {"folder": one.folder, "flagged": "yes" if one.is_flagged else "no"})
        for name, one in moved.items()
    }
    urgent = names["urgent"]
    return [
        Goal(urgent, tuple(wants[name] for name, one in moved.items() if one.folder == urgent)),
        Goal("others", tuple(wants[name] for name, one in moved.items() if one.folder != urgent)),
    ]


def _plan(moved: dict[str, _Letter], report: Calls) -> tuple[Deed, ...]:
    plan = Plan()
    plan.look(*opened("browser", "link:support/routing"))
    plan.look(*opened("tables", "table:Customers"))
    plan.look(*opened("calendar", "calendar:oncall"))
    for name, one in moved.items():
        flag = [click("flag")] if one.is_flagged else []
        plan.act(*opened("mail", "folder:Inbox", name), *flag, click(f"move:{one.folder}"))
    plan.act(*report)
    return tuple(plan.deeds)


MAIL = Category("mail", make)
