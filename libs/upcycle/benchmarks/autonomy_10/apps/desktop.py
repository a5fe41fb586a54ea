"""The desktop: which app is open, what it shows, and clicks and texts that go to it."""

from typing import Final

from ..errors import ActionRefused
from ..machine.state import Computer, Screen
from .browser import browser_page
from .calendar import calendar_page
from .mail import mail_page
from .notes import notes_page
from .page import App, Element
from .settings import settings_page
from .tables import tables_page

MAX_TEXT_CHARS: Final = 20_000
APPS: Final[dict[str, App]] = {
    "mail": mail_page,
    "calendar": calendar_page,
    "tables": tables_page,
    "notes": notes_page,
    "settings": settings_page,
    "browser": browser_page,
}


def shown(machine: Computer) -> str:
    """What is on the screen."""
    if not machine.screen.app:
        return f"== Desktop ==\nNo app is open. There are: {', '.join(APPS)}"
    return APPS[machine.screen.app](machine).shown()


def open_app(machine: Computer, name: str) -> str:
    """Show an app at its first page. Raises ActionRefused."""
    if name not in APPS:
        raise ActionRefused(f"there is no app {name[:60]!r}", f"there are: {', '.join(APPS)}")
    machine.screen = Screen(name)
    return shown(machine)


def click(machine: Computer, name: str) -> str:
    """Press an element of the screen. Raises ActionRefused."""
    element = _element(machine, name)
    if element.press is None:
        raise ActionRefused(f"[{name}] is a field", "type_text writes to it")
    element.press()
    return shown(machine)


def type_text(machine: Computer, name: str, text: str) -> str:
    """Put a text in the place of what a field holds. Raises ActionRefused."""
    if len(text) > MAX_TEXT_CHARS:
        raise ActionRefused(
            f"the text has {len(text):,} characters", f"a field takes at most {MAX_TEXT_CHARS:,}"
        )
    element = _element(machine, name)
    if element.write is None:
        raise ActionRefused(f"[{name}] is no field", "click presses it")
    element.write(text)
    return shown(machine)


def _element(machine: Computer, name: str) -> Element:
    elements = APPS[machine.screen.app](machine).elements if machine.screen.app else []
    for one in elements:
        if one.name == name:
            return one
    names = ", ".join(one.name for one in elements[:30]) or "nothing: open an app first"
    raise ActionRefused(f"there is no element {name[:60]!r} on the screen", f"it has {names}")
