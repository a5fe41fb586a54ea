"""The repositories, what can be broken in each, and calls that show it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

FOLDER: Final = Path(__file__).with_name("repositories")
Split = Literal["held_out", "train"]


@dataclass(frozen=True, slots=True)
class Defect:
    """What is wrong in one file: `wrong` stands where `right` belongs."""

    name: str
    file: str
    right: str
    wrong: str


@dataclass(frozen=True, slots=True)
class Library:
    """A repository. files: its modules, in the order in which they import one another. call: draws an
    expression that calls one of its functions."""

    name: str
    split: Split
    about: str
    files: tuple[str, ...]
    defects: tuple[Defect, ...]
    call: Callable[[random.Random], str]

    def sources(self, defects: Sequence[Defect] = ()) -> dict[str, str]:
        """Its files by path, with these defects."""
        found = {f"{self.name}/{file}": _text(self.name, file) for file in self.files}
        for defect in defects:
            path = f"{self.name}/{defect.file}"
            if found[path].count(defect.right) != 1:
                raise ValueError(f"{path}: {defect.right!r} is not there once")
            found[path] = found[path].replace(defect.right, defect.wrong)
        return {f"{self.name}/__init__.py": f'"""{self.about}"""\n', **found}


@cache
def _text(library: str, file: str) -> str:
    return (FOLDER / library / file).read_text()


def _depot_call(rng: random.Random) -> str:
    items = ("nut", "bolt", "cog")
    rows = [
        (rng.choice(items), rng.randint(0, 6), rng.randint(1, 5), rng.randint(1, 9))
        for _ in range(rng.randint(2, 7))
    ]
    lots = f"depot.model.lots_of({rows})"
    least = {item: rng.randint(0, 9) for item in items}
    return rng.choice(
        (
            f"depot.picking.pick({lots}, {rng.choice(items)!r}, {rng.randint(1, 12)})",
            f"depot.picking.cost({lots}, {rng.choice(items)!r}, {rng.randint(1, 12)})",
            f"depot.report.totals({lots})",
            f"depot.report.reorder({lots}, {least})",
        )
    )


def _spans_call(rng: random.Random) -> str:
    def drawn() -> list[tuple[int, int]]:
        starts = [rng.randint(0, 20) for _ in range(rng.randint(1, 5))]
        return [(start, start + rng.randint(1, 6)) for start in starts]

    return rng.choice(
        (
            f"spans.core.merge({drawn()})",
            f"spans.core.common({drawn()}, {drawn()})",
            f"spans.calendar.free({drawn()}, {rng.randint(0, 6)}, {rng.randint(12, 30)})",
            f"spans.calendar.busiest({drawn()})",
        )
    )


def _tabular_call(rng: random.Random) -> str:
    def cell() -> str:
        return rng.choice(("red", " blue", "green ", '"a,b"', '"say ""hi"""', '" x "', ""))

    def size() -> str:
        return rng.choice(("", str(rng.randint(0, 9)), f"1 {rng.randint(100, 400)}", "1_000"))

    lines = [
        "name,kind,size",
        *(f"{cell()},{rng.choice(('p', 'q', 'r'))},{size()}" for _ in range(rng.randint(2, 6))),
    ]
    for _ in range(rng.randint(0, 2)):
        lines.insert(rng.randint(1, len(lines)), rng.choice(("", "  ", "short")))
    rows = f"tabular.reading.table({chr(10).join(lines)!r})"
    return rng.choice(
        (
            f"tabular.reading.cells({','.join(cell() for _ in range(rng.randint(1, 4)))!r})",
            rows,
            f"tabular.queries.sums({rows}, 'kind', 'size')",
            f"tabular.queries.top({rows}, 'size', {rng.randint(1, 3)})",
        )
    )


def _ledger_call(rng: random.Random) -> str:
    names = ("ann", "bob", "cyd")
    opening = {name: rng.randint(0, 90) for name in names[: rng.randint(2, 3)]}
    transfers = [(*rng.sample(names, 2), rng.randint(1, 60)) for _ in range(rng.randint(1, 6))]
    return rng.choice(
        (
            f"ledger.accounts.balances({opening}, {transfers})",
            f"ledger.accounts.refused({opening}, {transfers})",
            f"ledger.interest.grown({rng.randint(100, 9000)}, {rng.randint(1, 9)}, {rng.randint(0, 5)})",
            f"ledger.interest.payments({rng.randint(0, 90)}, {rng.randint(1, 30)})",
        )
    )


def _wording_call(rng: random.Random) -> str:
    words = [
        rng.choice(("Oak", "elm", "ASH", "yew-tree", "fir", "a", "sycamores", "Elm"))
        for _ in range(rng.randint(1, 7))
    ]
    text = rng.choice((" ", "  ", ", ")).join(words)
    return rng.choice(
        (
            f"wording.shapes.slug({text!r})",
            f"wording.shapes.initials({text!r})",
            f"wording.shapes.shortened({text!r}, {rng.randint(4, 20)})",
            f"wording.lines.wrapped({text!r}, {rng.randint(4, 16)})",
            f"wording.lines.counted({text!r})",
        )
    )


LIBRARIES: Final = (
    Library(
        "depot",
        "held_out",
        "Stock of a depot: what is picked, what it cost, what to order.",
        ("model.py", "picking.py", "report.py"),
        (
            Defect("order of lots", "model.py", "(lot.day, lot.price)", "(lot.price, lot.day)"),
            Defect(
                "what is missing",
                "picking.py",
                "        missing -= taken\n",
                "        missing = wanted - taken\n",
            ),
            Defect(
                "cost of a lot", "picking.py", "total += taken * lot.price", "total += lot.pieces * lot.price"
            ),
            Defect(
                "sum by item",
                "report.py",
                "found.get(lot.item, 0) + lot.pieces",
                "max(found.get(lot.item, 0), lot.pieces)",
            ),
            Defect(
                "least number",
                "report.py",
                "if there.get(item, 0) < number",
                "if there.get(item, 0) <= number",
            ),
        ),
        _depot_call,
    ),
    Library(
        "spans",
        "held_out",
        "Spans of numbers, and the free time of a day.",
        ("core.py", "calendar.py"),
        (
            Defect("touching spans", "core.py", "start <= merged[-1][1]", "start < merged[-1][1]"),
            Defect("a span inside another", "core.py", "max(merged[-1][1], end))", "end)"),
            Defect("empty spans", "core.py", "if low < high:", "if low <= high:"),
            Defect("the end of the day", "calendar.py", "        if begin >= end:\n            break\n", ""),
            Defect(
                "ends before starts",
                "calendar.py",
                "in sorted(events):",
                "in sorted(events, key=lambda event: (event[0], -event[1])):",
            ),
        ),
        _spans_call,
    ),
    Library(
        "tabular",
        "held_out",
        "Tables as text, and questions to them.",
        ("reading.py", "queries.py"),
        (
            Defect(
                "two quotes",
                "reading.py",
                "            cell += '\"'\n            at += 1\n",
                "            at += 1\n",
            ),
            Defect(
                "spaces in quotes",
                "reading.py",
                "    found.append(cell if was_quoted else cell.strip())\n    return found",
                "    found.append(cell.strip())\n    return found",
            ),
            Defect(
                "missing cells",
                "reading.py",
                'values[at] if at < len(values) else "" for at, name in enumerate(names)}',
                "value for name, value in zip(names, values)}",
            ),
            Defect("underscores", "queries.py", '.replace("_", "")', '.split("_")[0]'),
            Defect(
                "the largest first",
                "queries.py",
                "key=lambda row: -number(row[column]))",
                "key=lambda row: row[column], reverse=True)",
            ),
        ),
        _tabular_call,
    ),
    Library(
        "ledger",
        "train",
        "Accounts, transfers and interest.",
        ("accounts.py", "interest.py"),
        (
            Defect(
                "the last cent",
                "accounts.py",
                "if found.get(source, 0) >= cents:",
                "if found.get(source, 0) > cents:",
            ),
            Defect(
                "the target",
                "accounts.py",
                "found[target] = found.get(target, 0) + cents",
                "found[target] = cents",
            ),
            Defect("what came before", "accounts.py", "transfers[:at])", "transfers[: at + 1])"),
            Defect(
                "interest on interest",
                "interest.py",
                "cents += yearly(cents, percent)",
                "cents += yearly(cents, percent) // years",
            ),
            Defect("the last payment", "interest.py", "min(rate, cents)", "rate"),
        ),
        _ledger_call,
    ),
    Library(
        "wording",
        "train",
        "Text in other shapes.",
        ("shapes.py", "lines.py"),
        (
            Defect("hyphens", "shapes.py", '"-".join(plain.split())', 'plain.strip().replace(" ", "-")'),
            Defect("capitals", "shapes.py", "word[0].upper()", "word[0]"),
            Defect("the dots", "shapes.py", "text[: limit - 3]", "text[:limit]"),
            Defect("a full line", "lines.py", "len(word) <= width", "len(word) < width"),
            Defect("case of words", "lines.py", "text.lower().split()", "text.split()"),
        ),
        _wording_call,
    ),
)
