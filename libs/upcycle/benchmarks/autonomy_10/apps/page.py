"""What an app shows: lines of text, and elements that are clicked or written to."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..machine.state import Computer, Screen


@dataclass(frozen=True, slots=True)
class Element:
    """name: what click and type_text call it. label: what stands beside it."""

    name: str
    label: str = ""
    press: Callable[[], None] | None = None
    write: Callable[[str], None] | None = None


@dataclass(slots=True)
class Page:
    """One page of an app."""

    title: str
    text: list[str] = field(default_factory=list)
    elements: list[Element] = field(default_factory=list)

    def button(self, name: str, label: str, press: Callable[[], None]) -> None:
        """An element that is clicked."""
        self.elements.append(Element(name, label, press=press))

    def draft(self, screen: Screen, name: str, label: str, given: str = "") -> str:
        """A field that keeps what is typed until a button takes it; its text so far."""

        def write(text: str) -> None:
            screen.drafts[name] = text

        value = screen.drafts.get(name, given)
        self.elements.append(Element(name, f"{label}: {value}", write=write))
        return value

    def shown(self) -> str:
        """The page as text; fields are marked, the others are clicked."""
        lines = [f"== {self.title} ==", *self.text]
        lines += [
            f"[{one.name}]{' (field)' if one.write else ''} {one.label}".rstrip() for one in self.elements
        ]
        return "\n".join(lines)


App = Callable[[Computer], Page]


def go(machine: Computer, *place: str) -> Callable[[], None]:
    """What a button does that leads to another place of the same app."""

    def press() -> None:
        machine.screen.place = list(place)
        machine.screen.drafts = {}

    return press
