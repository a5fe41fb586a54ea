"""Notes: titles with a text each."""

from typing import Final

from ..errors import ActionRefused
from ..machine.state import Computer
from .page import Page, go

MAX_NOTES: Final = 200


def notes_page(machine: Computer) -> Page:
    """The place that the screen is at: notes, one note, or a new one."""
    match machine.screen.place:
        case ["note", title]:
            return _note(machine, title)
        case ["new"]:
            return _new(machine)
    page = Page("Notes")
    for title in machine.notes:
        page.button(f"note:{title}", "open it", go(machine, "note", title))
    page.button("new", "new note", go(machine, "new"))
    return page


def _note(machine: Computer, title: str) -> Page:
    page = Page(f"Notes: {title}", machine.notes[title].splitlines())
    text = page.draft(machine.screen, "text", "text", machine.notes[title])

    def save() -> None:
        machine.notes[title] = text
        go(machine)()

    def delete() -> None:
        del machine.notes[title]
        go(machine)()

    page.button("save", "save it", save)
    page.button("delete", "delete it", delete)
    page.button("back", "leave it as it is", go(machine))
    return page


def _new(machine: Computer) -> Page:
    page = Page("Notes: new note")
    title = page.draft(machine.screen, "title", "title").strip()
    text = page.draft(machine.screen, "text", "text")

    def save() -> None:
        if not title or title in machine.notes:
            raise ActionRefused(f"title is {title[:60]!r}", "give one that no other note has")
        if len(title) > 100 or len(machine.notes) >= MAX_NOTES:
            raise ActionRefused(
                "there is no room for it", f"at most {MAX_NOTES} notes, titles of 100 characters"
            )
        machine.notes[title] = text
        go(machine)()

    page.button("save", "save it", save)
    page.button("back", "leave it", go(machine))
    return page
