"""Settings: sections of named values, some with choices, some managed."""

from typing import Final

from ..errors import ActionRefused
from ..machine.state import Computer, Setting
from .page import Element, Page, go

MAX_CHARS: Final = 200


def settings_page(machine: Computer) -> Page:
    """All sections, or the settings of one: a setting is named `section.name`."""
    match machine.screen.place:
        case ["section", section]:
            return _section(machine, section)
    page = Page("Settings")
    for section in dict.fromkeys(name.partition(".")[0] for name in machine.settings):
        page.button(f"section:{section}", "open it", go(machine, "section", section))
    return page


def _section(machine: Computer, section: str) -> Page:
    page = Page(f"Settings: {section}")
    for name, setting in machine.settings.items():
        if name.partition(".")[0] == section:
            page.elements.append(_element(name, setting))
    page.button("back", "all sections", go(machine))
    return page


def _element(name: str, setting: Setting) -> Element:
    def write(text: str) -> None:
        if setting.is_managed:
            raise ActionRefused(f"{name} is managed by the organisation", "it stays as it is")
        if setting.choices and text not in setting.choices:
            raise ActionRefused(f"{name} cannot be {text[:40]!r}", f"choose {', '.join(setting.choices)}")
        if len(text) > MAX_CHARS or not text.isprintable():
            raise ActionRefused(
                f"{text[:40]!r} has {len(text):,} characters", f"at most {MAX_CHARS}, in one line"
            )
        setting.value = text.strip()

    remark = f" (one of {', '.join(setting.choices)})" if setting.choices else ""
    remark += " (managed)" if setting.is_managed else ""
    return Element(name, f"{setting.value}{remark}", write=write)
