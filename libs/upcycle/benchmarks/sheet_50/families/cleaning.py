"""Untidy lists that are copied in order, row by row: every row of the raw list has something to mend."""

import datetime
import random

from ..book import Rows, Value
from ..problems import Kind, Problem, Table
from ..words import DEPARTMENTS, FIRST_NAMES, LAST_NAMES

FAMILY = "cleaning"
_NUM_ROWS = 24
_KEEP = (
    "One row for each, from row 2 of sheet Clean, in any order, and nothing else there. "
    "Leave sheet Raw as it is."
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def contacts(shape: random.Random, data: random.Random) -> Problem:
    """Names and addresses in order, each address once."""
    clean: list[tuple[Value, ...]] = []
    raw: list[tuple[Value, ...]] = []
    for first, last in _people(data):
        clean.append((f"{first} {last}", f"{first}.{last}@firm.example".lower()))
        raw.append((_untidy(f"{first} {last}", data), _spaced(f"{first}.{last}@Firm.example", data)))
    for at in data.sample(range(_NUM_ROWS), 6):
        name, mail = clean[at]
        raw.insert(data.randint(0, len(raw)), (_untidy(str(name), data), _spaced(str(mail).upper(), data)))
    text = (
        "Sheet Raw lists people, some more than once. Write each person once to sheet Clean:\n"
        "- A, Name: first and last name, each with a capital first letter and else small, one space between\n"
        "- B, Mail: the address in small letters, without spaces; an address is a person, whatever its case\n"
    )
    return _problem(text, ("Name", "Mail"), raw, ("Name", "Mail"), clean)


def payments(shape: random.Random, data: random.Random) -> Problem:
    """Days and amounts that were typed in many ways."""
    sign, word = shape.choice((("$", "USD"), ("€", "EUR"), ("£", "GBP")))
    clean: list[tuple[Value, ...]] = []
    raw: list[tuple[Value, ...]] = []
    for number in data.sample(range(1000, 10_000), _NUM_ROWS):
        day = datetime.date(2024, 1, 1) + datetime.timedelta(days=data.randint(0, 500))
        cents = data.randint(1_000, 900_000)
        written = data.choice(
            (f"{sign}{cents / 100:,.2f}", f"{cents / 100:.2f} {word}", f" {sign} {cents / 100:.2f}")
        )
        forms = (
            f"{day.day}.{day.month}.{day.year}",
            f"{day.day} {_MONTHS[day.month - 1]} {day.year}",
            day.strftime("%Y/%m/%d"),
        )
        clean.append((number, day.isoformat(), cents / 100))
        raw.append((number, data.choice(forms), written))
    text = (
        "Sheet Raw lists payments. Days are written as day.month.year, day month year or year/month/day. "
        "Write each payment to sheet Clean:\n"
        "- A, Number: as it is\n- B, Day: as text, YYYY-MM-DD\n"
        "- C, Amount: as a number, without the currency\n"
    )
    return _problem(text, ("Number", "Day", "Amount"), raw, ("Number", "Day", "Amount"), clean)


def weights(shape: random.Random, data: random.Random) -> Problem:
    """Weights in one unit, and categories under one name."""
    names = {
        "Fruit": ("fruits", "FRUIT", "frt"),
        "Vegetables": ("veg", "vegetable", "VEGGIES"),
        "Dairy": ("dairy products", "DAIRY", "milk etc"),
        "Bakery": ("bread", "BAKERY", "baked goods"),
    }
    clean: list[tuple[Value, ...]] = []
    raw: list[tuple[Value, ...]] = []
    for at in range(_NUM_ROWS):
        category, grams = data.choice(tuple(names)), data.randint(2, 500) * 10
        sku = f"K{at:02d}{data.randint(10, 99)}"
        written = data.choice((f"{grams} g", f"{grams / 1000:g} kg", f"{grams}g", f"{grams / 1000:g}KG"))
        clean.append((sku, category, grams))
        raw.append((sku, data.choice(names[category]), written))
    aliases: Rows = [
        ("Written", "Category"),
        *((one, name) for name, all_of in names.items() for one in all_of),
    ]
    text = (
        "Sheet Raw lists goods. Write each to sheet Clean:\n- A, Code: as it is\n"
        "- B, Category: the category that sheet Names gives for what is written\n"
        "- C, Grams: the weight in grams, as a number\n"
    )
    heads = ("Code", "Category", "Grams")
    made = _problem(text, ("Code", "Written", "Weight"), raw, heads, clean)
    return Problem(made.text, {**made.sheets, "Names": aliases}, table=made.table)


def staff(shape: random.Random, data: random.Random) -> Problem:
    """One column split in three; test entries and people who left are dropped."""
    gone = shape.choice(("left", "inactive", "retired"))
    clean: list[tuple[Value, ...]] = []
    raw: list[tuple[Value, ...]] = []
    for first, last in _people(data):
        department = data.choice(DEPARTMENTS)
        clean.append((first, last, department))
        raw.append(
            (
                data.choice(
                    (
                        f"{last}, {first} ({department})",
                        f" {last} ,{first} ({department})",
                        f"{last},  {first}  ({department}) ",
                    )
                ),
                data.choice(("active", "", "active ")),
            )
        )
    for _ in range(8):
        first, last = data.choice(FIRST_NAMES), data.choice(LAST_NAMES)
        raw.insert(
            data.randint(0, len(raw)),
            (f"{last}, {first} ({data.choice(DEPARTMENTS)})", data.choice((gone, gone.upper(), "test"))),
        )
    raw = [(one, state or None) for one, state in raw]
    text = (
        f"Sheet Raw lists staff as Last, First (Department). Leave out rows whose state is {gone} or "
        "test, in any case, and write the others to sheet Clean:\n"
        "- A, First: first name\n- B, Last: last name\n"
        "- C, Department, without brackets; none with spaces around it\n"
    )
    return _problem(text, ("Person", "State"), raw, ("First", "Last", "Department"), clean)


def _people(data: random.Random) -> list[tuple[str, str]]:
    return list(zip(data.sample(FIRST_NAMES, _NUM_ROWS), data.sample(LAST_NAMES, _NUM_ROWS), strict=True))


def _untidy(name: str, data: random.Random) -> str:
    """Never as it should be."""
    first, last = name.split()
    return data.choice(
        (
            f" {first.lower()} {last}",
            f"{first.upper()}  {last.upper()}",
            f"{first}  {last.lower()} ",
            f"{first.lower()} {last.upper()}",
        )
    )


def _spaced(mail: str, data: random.Random) -> str:
    return data.choice((f" {mail}", f"{mail} ", mail.title(), mail))


def _problem(
    text: str, raw_heads: tuple[str, ...], raw: Rows, heads: tuple[str, ...], clean: Rows
) -> Problem:
    sheets: dict[str, Rows] = {"Raw": [raw_heads, *raw], "Clean": [heads]}
    return Problem(text + _KEEP, sheets, table=Table("Clean", tuple(tuple(row) for row in clean)))


KINDS = (
    Kind(FAMILY, "contacts", contacts),
    Kind(FAMILY, "payments", payments),
    Kind(FAMILY, "weights", weights),
    Kind(FAMILY, "staff", staff),
)
