"""Formulas down a column, from the cells of their row and from settings on another sheet."""

import datetime
import random

from ..book import Rows, Value
from ..problems import Column, Kind, Problem, asked, column_targets, rounded
from ..words import FIRST_NAMES, ITEMS, LAST_NAMES

FAMILY = "formulas"
_KEEP = (
    "Each must be a formula that stays right when the data or the settings change. "
    "Leave all other cells as they are."
)


def invoice(shape: random.Random, data: random.Random) -> Problem:
    """Net and gross of an invoice's lines."""
    count, label = shape.randint(12, 16), shape.choice(("VAT rate", "Sales tax", "Tax rate"))
    rate = data.choice((0.05, 0.07, 0.1, 0.15, 0.19, 0.21))
    lines = [
        (item, data.randint(1, 40), data.randint(150, 9900) / 100, data.choice((0, 0.05, 0.1, 0.2)))
        for item in data.sample(ITEMS, count)
    ]
    net = [rounded(number * price * (1 - off)) for _, number, price, off in lines]
    columns = [
        Column("Net", "=ROUND(B{r}*C{r}*(1-D{r}),2)", net),
        Column("Gross", "=ROUND(E{r}*(1+Settings!$B$1),2)", [rounded(one * (1 + rate)) for one in net]),
    ]
    said = [
        ("Net", "quantity times unit price less the discount, rounded to 2 digits"),
        ("Gross", f"the net plus tax at the {label.lower()} of sheet Settings, rounded to 2 digits"),
    ]
    heads = ("Item", "Quantity", "Unit price", "Discount", "Net", "Gross")
    sheets: dict[str, Rows] = {"Data": [heads, *lines], "Settings": [(label, rate)]}
    return _problem("Complete the invoice.", sheets, said, columns, 5)


def bonus(shape: random.Random, data: random.Random) -> Problem:
    """A bonus in steps of attainment."""
    count, currency = shape.randint(12, 16), shape.choice(("euros", "dollars", "francs"))
    low, high = data.choice((0.7, 0.75, 0.8)), data.choice((1.0, 1.05, 1.1))
    small, large = data.choice((0.01, 0.015, 0.02)), data.choice((0.04, 0.05, 0.06))
    names = data.sample(LAST_NAMES, count)
    lines = [(name, data.randint(300, 1500) * 100, data.randint(6, 12) * 10_000) for name in names]
    attained = [rounded(sales / quota, 4) for _, sales, quota in lines]
    earned: list[Value] = [
        rounded(line[1] * (large if share >= high else small if share >= low else 0))
        for line, share in zip(lines, attained, strict=True)
    ]
    formula = "=ROUND(B{r}*IF(D{r}>=Settings!$A$3,Settings!$B$3,IF(D{r}>=Settings!$A$2,Settings!$B$2,0)),2)"
    columns = [Column("Attainment", "=ROUND(B{r}/C{r},4)", attained), Column("Bonus", formula, earned)]
    said = [
        ("Attainment", "sales divided by quota, rounded to 4 digits"),
        (
            "Bonus",
            f"in {currency}: sales times the bonus rate of the highest step of sheet Settings whose "
            "attainment is reached, rounded to 2 digits; 0 below the first step",
        ),
    ]
    settings: Rows = [("Attainment from", "Bonus rate"), (low, small), (high, large)]
    heads = ("Name", "Sales", "Quota", "Attainment", "Bonus")
    return _problem(
        "Work out the bonuses.", {"Data": [heads, *lines], "Settings": settings}, said, columns, 4
    )


def due_dates(shape: random.Random, data: random.Random) -> Problem:
    """When an invoice is due, and whether it was paid in time."""
    count = shape.randint(12, 16)
    late, early, unpaid = shape.choice((("late", "on time", "open"), ("overdue", "punctual", "unpaid")))
    start = datetime.date(2025, 1, 1) + datetime.timedelta(days=shape.randint(0, 200))
    lines: list[tuple[Value, ...]] = []
    due: list[Value] = []
    states: list[Value] = []
    for at in range(count):
        issued = start + datetime.timedelta(days=data.randint(0, 120))
        terms = data.choice((7, 14, 30, 45))
        paid = None if data.random() < 0.3 else issued + datetime.timedelta(days=data.randint(1, 60))
        lines.append((f"INV-{at + 1:03d}", issued, terms, paid))
        due.append(issued + datetime.timedelta(days=terms))
        overrun = paid is not None and paid > issued + datetime.timedelta(days=terms)
        states.append(unpaid if paid is None else late if overrun else early)
    state = f'=IF(D{{r}}="","{unpaid}",IF(D{{r}}>E{{r}},"{late}","{early}"))'
    columns = [Column("Due", "=B{r}+C{r}", due), Column("State", state, states)]
    said = [
        ("Due", "the day of issue plus the terms, in days"),
        (
            "State",
            f"{unpaid} when there is no day of payment, {late} when it is after the due day, else {early}",
        ),
    ]
    heads = ("Invoice", "Issued", "Terms", "Paid", "Due", "State")
    return _problem("Find the state of each invoice.", {"Data": [heads, *lines]}, said, columns, 5)


def codes(shape: random.Random, data: random.Random) -> Problem:
    """Text put together from text and numbers."""
    count, digits, letters = shape.randint(12, 16), shape.choice((3, 4, 5)), shape.choice((2, 3))
    domain = data.choice(("firm.example", "mail.example", "team.example", "corp.example"))
    pairs = zip(data.sample(FIRST_NAMES, count), data.sample(LAST_NAMES, count), strict=True)
    lines = [(first, last, data.randint(1, 999)) for first, last in pairs]
    made = [f"{last[:letters].upper()}-{number:0{digits}d}" for _, last, number in lines]
    mails = [f"{first}.{last}@{domain}".lower() for first, last, _ in lines]
    columns = [
        Column("Code", f'=UPPER(LEFT(B{{r}},{letters}))&"-"&TEXT(C{{r}},"{"0" * digits}")', made),
        Column("Mail", '=LOWER(A{r}&"."&B{r}&"@"&Settings!$B$1)', mails),
    ]
    said = [
        (
            "Code",
            f"the first {letters} letters of the last name in capitals, a hyphen, "
            f"and the number with {digits} digits (leading zeros)",
        ),
        ("Mail", "first name, a dot, last name, @ and the domain of sheet Settings, all in small letters"),
    ]
    heads = ("First name", "Last name", "Number", "Code", "Mail")
    sheets: dict[str, Rows] = {"Data": [heads, *lines], "Settings": [("Domain", domain)]}
    return _problem("Make a code and an address for each person.", sheets, said, columns, 4)


def _problem(
    title: str, sheets: dict[str, Rows], said: list[tuple[str, str]], columns: list[Column], left: int
) -> Problem:
    text = f"{title} Fill in\n{asked('Data', (2, left), said, len(columns[0].values))}\n{_KEEP}"
    return Problem(text, sheets, column_targets("Data", (2, left), columns))


KINDS = (
    Kind(FAMILY, "invoice", invoice),
    Kind(FAMILY, "bonus", bonus),
    Kind(FAMILY, "due dates", due_dates),
    Kind(FAMILY, "codes", codes),
)
