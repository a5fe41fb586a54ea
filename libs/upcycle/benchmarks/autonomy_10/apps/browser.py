"""Browser: the pages of a small intranet. `[[path]]` in a page is a link."""

import re
from functools import partial
from typing import Final

from ..errors import ActionRefused
from ..machine.state import Computer
from .page import Element, Page, go

START: Final = "home"
_LINK: Final = re.compile(r"\[\[([^\]]+)\]\]")


def browser_page(machine: Computer) -> Page:
    """The page that the screen is at; the start page has a link to every other."""
    at = machine.screen.place[0] if machine.screen.place else START
    text = machine.pages.get(at, "")
    links = list(dict.fromkeys(_LINK.findall(text)))
    if at == START:
        text = text or "Intranet"
        links = [one for one in machine.pages if one != START]
    page = Page(f"Browser: {at}", _LINK.sub(r"\1", text).splitlines())

    def visit(path: str) -> None:
        if path not in (START, *machine.pages):
            raise ActionRefused(f"the intranet has no page {path[:60]!r}", f"[{START}] leads to all of them")
        go(machine, path)()

    page.elements.append(Element("address", at, write=visit))
    for one in links:
        page.button(f"link:{one}", "", partial(visit, one))
    page.button(START, "start page", go(machine))
    return page
