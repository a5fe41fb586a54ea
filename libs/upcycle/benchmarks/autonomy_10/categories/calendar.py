"""Calendar: meetings go to the first time that suits all, after one event is called off."""

import random
from dataclasses import dataclass
from typing import Final

from ..machine.state import Computer, Event, Mail
from ..problems import Calls, Category, ComputerProblem, Deed, Goal, Plan, Want, click, opened, typed
from .common import PEOPLE, RULES, page

DAYS: Final = ("2026-03-03", "2026-03-04", "2026-03-05", "2026-03-06")
_DAY_NAMES: Final = ("Tuesday", "Wednesday", "Thursday", "Friday")
_TITLES: Final = ("Budget", "Hiring", "Launch", "Pricing", "Design", "Security")
_FILLERS: Final = ("Call", "Review", "Focus", "Training", "Interview", "Lunch talk", "Planning", "Visit")
_FIRST, _LAST = 18, 34
"""Half hours from midnight: 9:00 and 17:00."""
_LUNCH: Final = (24, 26)


@dataclass(frozen=True, slots=True)
class _Request:
    """A meeting to be found. length: half hours. from_half: not before. days: places in DAYS."""

    title: str
    guests: tuple[str, ...]
    length: int
    from_half: int
    days: tuple[int, ...]


def _time(half: int) -> str:
    return f"{half // 2:02d}:{half % 2 * 30:02d}"


def _half(time: str) -> int:
    return int(time[:2]) * 2 + int(time[3:]) // 30


def _fill(machine: Computer, rng: random.Random, people: list[str]) -> None:
    """Give everybody a week of events, no two of one person with one title."""
    number = 0
    for person in people:
        for day in DAYS:
            at, count = _FIRST, 0
            while at < _LAST - 1:
                length = rng.randrange(1, 4)
                if rng.random() < 0.55:
                    number, count = number + 1, count + 1
                    title = f"{rng.choice(_FILLERS)} {day[-1]}{count}"
                    end = _time(min(at + length, _LAST))
                    machine.events[f"e{number:03d}"] = Event(person, title, day, _time(at), end)
                at += length


def _slot(events: list[Event], request: _Request) -> tuple[str, str, str] | None:
    """The first time that suits: (day, start, end)."""
    who = {"ana", *request.guests}
    for place in request.days:
        busy = [_LUNCH]
        busy += [(_half(e.start), _half(e.end)) for e in events if e.calendar in who and e.day == DAYS[place]]
        for at in range(max(_FIRST, request.from_half), _LAST - request.length + 1):
            end = at + request.length
            if all(end <= start or at >= stop for start, stop in busy):
                return DAYS[place], _time(at), _time(end)
    return None


def _meeting(title: str, guests: tuple[str, ...], slot: tuple[str, str, str]) -> tuple[Want, Calls]:
    day, start, end = slot
    names = ", ".join(sorted(guests))
    values = {"title": title, "day": day, "start": start, "end": end, "guests": names}
    calls = (
        *opened("calendar", "calendar:ana", "new"),
        *(typed(*pair) for pair in values.items()),
        click("save"),
    )
    want = Want(f"event:ana/{title.casefold()}", {"when": f"{day} {start}-{end}", "guests": names})
    return want, calls


def _letter(request: _Request) -> str:
    days = " or ".join(_DAY_NAMES[place] for place in request.days)
    hours = f"{request.length // 2} h" if request.length % 2 == 0 else f"{request.length * 30} min"
    return page(
        f"Please find a time for {request.title}: {hours}, with {' and '.join(request.guests)} and you.",
        f"It has to be {days}, not before {_time(request.from_half)}.",
    )


def _requests(rng: random.Random, people: list[str]) -> list[_Request]:
    found = []
    for title in rng.sample(_TITLES, 2):
        days = tuple(sorted(rng.sample(range(len(DAYS)), 2)))
        guests = tuple(rng.sample(people, 2))
        found.append(_Request(title, guests, rng.randrange(2, 4), rng.choice((18, 19, 20, 21)), days))
    return found


_RULES: Final = page(
    "How we meet",
    "Meetings lie between 09:00 and 17:00, not between 12:00 and 13:00, and begin on the hour or the half "
    "hour.",
    "The earliest time at which everybody is free is taken; what was asked for first comes first.",
    "An event goes into the calendar of who was asked, with the title that was asked for; guests are the "
    "others.",
    "What is called off is deleted first, in the calendar of who is told so.",
)


def make(rng: random.Random) -> ComputerProblem:
    while (found := _drawn(rng)) is None:
        pass
    return found


def _drawn(rng: random.Random) -> ComputerProblem | None:
    """A problem, where both meetings have a time and the one called off makes a difference."""
    people = rng.sample(PEOPLE, 3)
    machine = Computer()
    _fill(machine, rng, ["ana", *people])
    requests = _requests(rng, people)
    mine = [name for name, event in machine.events.items() if event.calendar == "ana"]
    off = rng.choice(mine)
    called_off = machine.events[off]
    left = [event for name, event in machine.events.items() if name != off]
    slots = []
    for one in requests:
        slot = _slot(left, one)
        if slot is None:
            return None
        slots.append(slot)
        left.append(Event("ana", one.title, *slot))
    if slots[0] == _slot(list(machine.events.values()), requests[0]):
        return None
    for one in requests:
        machine.receive(Mail(f"{one.guests[0]}@ours.com", "ana", f"{one.title}: a time?", _letter(one)))
    said = (
        f"{called_off.title} on {_DAY_NAMES[DAYS.index(called_off.day)]} at {called_off.start} is called off."
    )
    machine.receive(Mail(f"{rng.choice(people)}@ours.com", "ana", "Called off", said))
    machine.receive(Mail("canteen@ours.com", "ana", "Menu", "Soup on Tuesday at 12:00."))
    machine.pages = {"office/meetings": _RULES, "office/rooms": "Rooms are free."}
    made = [_meeting(one.title, one.guests, slot) for one, slot in zip(requests, slots, strict=True)]
    gone = Want(f"event:ana/{called_off.title.casefold()}", None)
    goals = (
        *(Goal(one.title, (want,)) for one, (want, _) in zip(requests, made, strict=True)),
        Goal("called off", (gone,)),
    )
    text = (
        "Read the mails in the inbox and put the meetings that are asked for into the calendar, by the rules "
        f"on page office/meetings of the intranet. Colleagues' calendars are open to you. {RULES}"
    )
    return ComputerProblem(text, machine, goals, _plan(requests, off, [calls for _, calls in made]))


def _plan(requests: list[_Request], off: str, meetings: list[Calls]) -> tuple[Deed, ...]:
    plan = Plan()
    plan.look(*opened("browser", "link:office/meetings"))
    plan.look(*opened("mail", "folder:Inbox", "m01", "back", "m02", "back", "m03"))
    plan.act(*opened("calendar", "calendar:ana", off, "delete"))
    for who in sorted({guest for one in requests for guest in one.guests}):
        plan.look(*opened("calendar", f"calendar:{who}"))
    for calls in meetings:
        plan.act(*calls)
    return tuple(plan.deeds)


CALENDAR = Category("calendar", make)
