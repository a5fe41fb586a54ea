"""The documentation's pages: found in an installed wheel or in the checkout, searched, read."""

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from upcycle.errors import UpcycleError

SHIPPED: Final = "_docs"
"""Folder of the pages inside the installed package; libs/pyproject.toml puts them there."""
EXCERPT_CHARS: Final = 400
_HEADING: Final = re.compile(r"^(#{1,4}) +(.+?) *$", re.M)
_FENCED: Final = re.compile(r"^( *)```.*?^\1```", re.M | re.S)
_HEADING_WEIGHT: Final = 4


class PagesNotFound(UpcycleError):
    """This installation holds no pages."""

    kind = "pages_not_found"


class UnknownPage(UpcycleError):
    """There is no such page, or no such section in it."""

    kind = "unknown_page"


@dataclass(frozen=True)
class Section:
    """A heading of a page and the text below it, up to the next heading."""

    page: str
    heading: str
    text: str

    @cached_property
    def words(self) -> Counter[str]:
        """How often each word occurs; words of the heading count more."""
        found = Counter(_words(self.text))
        for word in _words(f"{self.page} {self.heading}"):
            found[word] += _HEADING_WEIGHT
        return found


@dataclass(frozen=True, slots=True)
class Hit:
    """A section that fits a query, and the part of it that fits best."""

    page: str
    section: str
    excerpt: str


def pages_folder(package: Path = Path(__file__).parents[1]) -> Path:
    """Where the pages lie: inside the installed package, or docs/ of the checkout. Raises PagesNotFound."""
    for folder in (package / SHIPPED, package.parents[1] / "docs"):
        if (folder / "index.md").is_file():
            return folder
    raise PagesNotFound(
        f"no documentation pages below {package / SHIPPED}", "install the wheel, or use a checkout"
    )


def load_pages(folder: Path) -> dict[str, str]:
    """Text by name: `do/add-a-loss` for do/add-a-loss.md."""
    files = sorted(folder.rglob("*.md"))
    return {file.relative_to(folder).with_suffix("").as_posix(): file.read_text("utf-8") for file in files}


def sections(page: str, text: str) -> Iterator[Section]:
    """The page cut at its headings. A # inside a code block is no heading."""
    fenced = [match.span() for match in _FENCED.finditer(text)]
    headings = [
        match
        for match in _HEADING.finditer(text)
        if not any(begin <= match.start() < end for begin, end in fenced)
    ]
    ends = [match.start() for match in headings[1:]] + [len(text)]
    for match, end in zip(headings, ends, strict=True):
        yield Section(page, match[2], text[match.end() : end].strip())


class DocPages:
    """Searches and reads a set of pages."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        self._pages = pages
        self._sections = [one for name, text in pages.items() for one in sections(name, text)]

    @property
    def names(self) -> Sequence[str]:
        """Of all pages."""
        return list(self._pages)

    def search(self, query: str, limit: int = 8) -> list[Hit]:
        """Sections that hold words of the query, best first: rare words count more than frequent ones."""
        wanted = set(_words(query))
        rarity = {word: self._rarity(word) for word in wanted}
        scored = [
            (sum(rarity[word] * _damped(one.words[word]) for word in wanted), one) for one in self._sections
        ]
        best = sorted((pair for pair in scored if pair[0] > 0), key=lambda pair: -pair[0])[:limit]
        return [Hit(one.page, one.heading, _excerpt(one.text, rarity)) for _, one in best]

    def read(self, page: str, section: str = "") -> str:
        """A page, or one section of it. Raises UnknownPage with the nearest name."""
        name = page.removesuffix(".md").strip("/")
        if name not in self._pages:
            raise UnknownPage(f"there is no page {page!r}", _nearest(name, self.names))
        if not section:
            return self._pages[name]
        own = [one for one in self._sections if one.page == name]
        for one in own:
            if one.heading.casefold() == section.casefold():
                return f"## {one.heading}\n\n{one.text}"
        raise UnknownPage(
            f"page {name!r} has no section {section!r}", _nearest(section, [one.heading for one in own])
        )

    def _rarity(self, word: str) -> float:
        holding = sum(word in one.words for one in self._sections)
        return math.log((1 + len(self._sections)) / (1 + holding)) if holding else 0.0


def _words(text: str) -> list[str]:
    """In lower case; `snake_case` and `kebab-case` count as one word and as their parts."""
    whole = re.findall(r"[a-z0-9][\w-]*", text.lower())
    parts = [part for word in whole for part in re.split(r"[_-]", word) if part and part != word]
    return [_stem(word) for word in whole + parts]


def _stem(word: str) -> str:
    """`rewards` and `reward`, `designing` and `design` are one word."""
    if len(word) > 6 and word.endswith("ing"):
        return word[:-3]
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _damped(count: int) -> float:
    return count / (count + 1.5)


def _excerpt(text: str, rarity: Mapping[str, float]) -> str:
    """The lines from the one that fits best on."""
    lines = text.splitlines() or [""]
    fits = [sum(rarity.get(word, 0.0) for word in set(_words(line))) for line in lines]
    found = "\n".join(lines[fits.index(max(fits)) :])
    return found if len(found) <= EXCERPT_CHARS else f"{found[:EXCERPT_CHARS].rstrip()} …"


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.3)
    return f"there is: {', '.join(close or sorted(known))}"
