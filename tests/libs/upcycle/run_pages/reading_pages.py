"""A page as a browser reads it: elements with their attributes, and text. What a browser would act on is
asserted on this, not on the source."""

from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final

_VOID: Final = {"meta", "input", "br", "link"}


@dataclass
class Page:
    """tags: how often each occurs. attributes: (tag, name, value). texts: by the tag that holds them. text:
    everything that a person can read, in its order. unclosed: elements that were never closed."""

    tags: Counter[str] = field(default_factory=Counter)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=dict)
    text: str = ""
    unclosed: list[str] = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        """Of one attribute, of all elements."""
        return [value for _, attribute, value in self.attributes if attribute == name]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()
        self._open: list[str] = []
        self._parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.tags[tag] += 1
        self.page.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.tags[tag] += 1
        self.page.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()
        else:
            self.page.unclosed.append(tag)

    def handle_data(self, data: str) -> None:
        tag = self._open[-1] if self._open else ""
        self.page.texts.setdefault(tag, []).append(data)
        if tag not in ("style", "script"):
            self._parts.append(data)

    def close(self) -> None:
        super().close()
        self.page.unclosed += self._open
        self.page.text = "".join(self._parts)


def read(html: str) -> Page:
    """The page."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.page
