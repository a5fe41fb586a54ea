"""Calendar: the calendars of several people, and a form for one event."""

import re
from typing import Final

from ..errors import ActionRefused
from ..machine.state import Computer, Event
from .page import Page, go

MAX_EVENTS: Final = 400
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_TIME: Final = re.compile(r"([01]\d|2[0-3]):[0-5]\d")
_FIELDS: Final = ("title", "day", "start", "end", "guests")


def calendar_page(machine: Computer) -> Page:
    """The place that the screen is at: calendars, one calendar, one event, or a new event."""
    match machine.screen.place:
        case ["calendar", name]:
            return _calendar(machine, name)
        case ["event", name]:
            return _event(machine, name, machine.events[name])
        case ["new", name]:
            return _event(machine, "", Event(name, "", "", "", ""))
    page = Page("Calendar")
    for name in sorted({one.calendar for one in machine.events.values()}):
        page.button(f"calendar:{name}", "open it", go(machine, "calendar", name))
    return page


def _calendar(machine: Computer, calendar: str) -> Page:
    page = Page(f"Calendar: {calendar}")
    mine = [(name, one) for name, one in machine.events.items() if one.calendar == calendar]
    for name, one in sorted(mine, key=lambda pair: (pair[1].day, pair[1].start)):
        guests = f" with {one.guests}" if one.guests else ""
        label = f"{one.day} {one.start}-{one.end} {one.title}{guests}"
        page.button(name, label, go(machine, "event", name))
    page.button("new", f"new event in this calendar, {calendar}", go(machine, "new", calendar))
    page.button("back", "all calendars", go(machine))
    return page


def _event(machine: Computer, name: str, event: Event) -> Page:
    page = Page(f"Calendar: {event.title or 'new event'} ({event.calendar})")
    given = {field: str(getattr(event, field)) for field in _FIELDS}
    values = {field: page.draft(machine.screen, field, field, given[field]).strip() for field in _FIELDS}

    def save() -> None:
        _check(values)
        if not name and len(machine.events) >= MAX_EVENTS:
            raise ActionRefused(f"there are {MAX_EVENTS} events", "delete one first")
        numbers = [int(one[1:]) for one in machine.events]
        machine.events[name or f"e{max(numbers, default=0) + 1:03d}"] = Event(event.calendar, **values)
        go(machine, "calendar", event.calendar)()

    def delete() -> None:
        del machine.events[name]
        go(machine, "calendar", event.calendar)()

    page.button("save", "save it", save)
    if name:
        page.button("delete", "delete it", delete)
    page.button("back", "leave it as it is", go(machine, "calendar", event.calendar))
    return page


def _check(values: dict[str, str]) -> None:
    """Raises ActionRefused for what is no event."""
    if not values["title"]:
        raise ActionRefused("the field title is empty", "type_text writes to [title]")
    if not _DAY.fullmatch(values["day"]):
        raise ActionRefused(f"day is {values['day'][:40]!r}", "write it as 2026-03-04")
    for one in ("start", "end"):
        if not _TIME.fullmatch(values[one]):
            raise ActionRefused(f"{one} is {values[one][:40]!r}", "write it as 09:30")
    if values["end"] <= values["start"]:
        raise ActionRefused(f"it ends at {values['end']}, and begins at {values['start']}", "end it later")
