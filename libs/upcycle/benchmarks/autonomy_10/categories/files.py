"""Files: a folder is cleaned up by a policy, a list of what is kept, and a legal hold."""

import random
from dataclasses import dataclass
from typing import Final

from ..machine.state import HOME, Computer
from ..problems import Category, ComputerProblem, Deed, Goal, Plan, Want, opened, shell
from .common import PEOPLE, RULES, is_gone, moved, page

DOWNLOADS: Final = f"{HOME}/Downloads"
_FIRMS: Final = ("Alder", "Birke", "Corvo", "Dalia", "Esker", "Fjord", "Gamma", "Helio")
_TOPICS: Final = ("budget", "roadmap", "speech", "offer", "survey", "manual", "letter", "plan")
_PLACES: Final = ("lake", "tower", "market", "bridge", "harbour", "garden", "station", "museum")


@dataclass(frozen=True, slots=True)
class _Item:
    """A file of Downloads. target: where it is to be, "" for nowhere; its own path where it stays."""

    path: str
    text: str
    day: str
    target: str
    mode: str = "644"


def _path(name: str) -> str:
    return f"{DOWNLOADS}/{name}"


def _invoices(rng: random.Random, finance: str) -> tuple[list[_Item], str]:
    """Five invoices, the last one of the firm on hold; and the name of that firm."""
    firms = rng.sample(_FIRMS, 4)
    found = []
    for number, firm in enumerate([*firms, firms[-1]]):
        year = rng.choice(("2023", "2024", "2025"))
        path = _path(f"scan-{rng.randrange(1000, 9999)}{number}.txt")
        text = page(
            "INVOICE", f"From: {firm} Ltd", f"Date: {year}-{rng.randrange(1, 13):02d}-11", "Total: see below"
        )
        is_held = firm == firms[-1]
        target = path if is_held else f"{HOME}/{finance}/{year}/{path.rpartition('/')[2]}"
        found.append(_Item(path, text, f"2026-01-{10 + number}", target))
    return found, firms[-1]


def _drafts(rng: random.Random, age: int, kept: str) -> list[_Item]:
    """Old drafts go, young ones and the one that the note keeps stay."""
    topics = rng.sample([one for one in _TOPICS if one != kept], 5)
    found = [_Item(_path(f"{kept}.draft"), f"draft of the {kept}", "2025-06-01", _path(f"{kept}.draft"))]
    for number, topic in enumerate(topics):
        path, is_old = _path(f"{topic}.draft"), number < 3
        day = f"2026-01-{28 - age // 2 - number:02d}" if is_old else f"2026-02-{20 + number:02d}"
        found.append(_Item(path, f"draft of the {topic}", day, "" if is_old else path))
    return found


def _photos(rng: random.Random, photos: str) -> list[_Item]:
    found = []
    for place in rng.sample(_PLACES, 3):
        path, day = _path(f"IMG-{place}.jpg"), f"2025-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}"
        text = f"JPEG taken {day} at the {place}"
        found.append(_Item(path, text, "2026-02-25", f"{HOME}/{photos}/{day[:7]}/IMG-{place}.jpg"))
    return found


def _policy(finance: str, photos: str, age: int, mode: str) -> str:
    return page(
        "File policy for Downloads",
        f"1. Invoices (first line INVOICE) go to ~/{finance}/YEAR, the year of their date, under their name.",
        f"2. A file .draft that was last changed more than {age} days ago is removed.",
        f"3. A photo goes to ~/{photos}/YYYY-MM of the day on which it was taken, as its text says.",
        f"4. Scripts (.sh) stay, with mode {mode}.",
        "5. What is on legal hold ([[legal/hold]]) or in a note of things to keep stays as it is.",
        "6. Everything else stays.",
    )


def make(rng: random.Random) -> ComputerProblem:
    finance, photos = rng.choice(("Finance", "Books", "Ledger")), rng.choice(("Photos", "Pictures", "Album"))
    age, mode, kept = rng.choice((20, 24, 28)), rng.choice(("600", "640", "700")), rng.choice(_TOPICS)
    invoices, held = _invoices(rng, finance)
    drafts, shots = _drafts(rng, age, kept), _photos(rng, photos)
    scripts = [
        _Item(_path(f"{name}.sh"), "#!/bin/sh\necho done", "2025-05-05", _path(f"{name}.sh"), "777")
        for name in rng.sample(PEOPLE, 2)
    ]
    rest = [
        _Item(_path(f"{name}.txt"), f"Minutes of {name}", "2024-02-02", _path(f"{name}.txt"))
        for name in rng.sample(_PLACES, 3)
    ]
    machine = Computer()
    everything = [*invoices, *drafts, *shots, *scripts, *rest]
    rng.shuffle(everything)
    for one in everything:
        machine.put(one.path, one.text, day=one.day, mode=one.mode)
    machine.pages = {
        "rules/files": _policy(finance, photos, age, mode),
        "legal/hold": page("Legal hold", f"All papers of {held} Ltd, wherever they lie."),
        "rules/travel": page("Travel policy", "Trains before planes."),
    }
    machine.notes = {"Shopping": "bread", "Please keep": page("Until I am back:", f"the draft of the {kept}")}
    goals = (
        Goal("invoices", _moves(invoices)),
        Goal("drafts", tuple(is_gone(one.path) for one in drafts if not one.target)),
        Goal("photos", _moves(shots)),
        Goal("scripts", tuple(Want(f"file:{one.path}", {"mode": mode}) for one in scripts)),
    )
    text = (
        "Clean up ~/Downloads by the file policy on the intranet. Ana left a note of what she wants to keep. "
        f"{RULES}"
    )
    return ComputerProblem(text, machine, goals, _plan(everything, mode))


def _moves(items: list[_Item]) -> tuple[Want, ...]:
    return tuple(
        want for one in items if one.target != one.path for want in moved(one.path, one.target, one.text)
    )


def _plan(items: list[_Item], mode: str) -> tuple[Deed, ...]:
    plan = Plan()
    plan.look(*opened("browser", "link:rules/files", "link:legal/hold"))
    plan.look(*opened("notes", "note:Please keep"))
    plan.look(shell("date"), shell(f"ls -l {DOWNLOADS}"), shell(f"grep -r INVOICE {DOWNLOADS}"))
    plan.look(shell(f"grep -r -E 'From|Date' {DOWNLOADS}"), shell(f"grep -r taken {DOWNLOADS}"))
    for one in items:
        if one.path.endswith(".sh"):
            plan.act(shell(f"chmod {mode} {one.path}"))
        elif not one.target:
            plan.act(shell(f"rm {one.path}"))
        elif one.target != one.path:
            folder = one.target.rpartition("/")[0]
            plan.act(shell(f"mkdir -p {folder}"), shell(f"mv {one.path} {one.target}"))
    return tuple(plan.deeds)


FILES = Category("files", make)
