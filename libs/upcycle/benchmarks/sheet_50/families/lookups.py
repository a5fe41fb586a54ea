"""Values that are looked up on another sheet: by a key, by a band, by two keys, in two steps."""

import random

from ..book import Rows, Value
from ..problems import Column, Kind, Problem, asked, column_targets, rounded
from ..words import DEPARTMENTS, FIRST_NAMES, ITEMS, LAST_NAMES

FAMILY = "lookups"
_KEEP = (
    "Each must be a formula that looks it up, and stays right when the data change. "
    "Leave all other cells as they are."
)


def prices(shape: random.Random, data: random.Random) -> Problem:
    """Prices by code; some codes are not in the list."""
    count, missing = shape.randint(12, 16), shape.choice(("unknown", "not listed", "no price"))
    listed = [
        (f"P{number}", item, data.randint(100, 9000) / 100)
        for number, item in zip(data.sample(range(100, 1000), 20), data.sample(ITEMS, 20), strict=True)
    ]
    known = {code: price for code, _, price in listed}
    lines = [
        (
            at + 1,
            f"P{data.randint(100, 999)}" if data.random() < 0.3 else data.choice(listed)[0],
            data.randint(1, 20),
        )
        for at in range(count)
    ]
    columns = [
        Column(
            "Price",
            f'=IFERROR(VLOOKUP(B{{r}},Prices!$A$2:$C$21,3,FALSE),"{missing}")',
            [known.get(code, missing) for _, code, _ in lines],
        ),
        Column(
            "Amount",
            "=IF(ISNUMBER(D{r}),ROUND(C{r}*D{r},2),0)",
            [rounded(known.get(code, 0) * number) for _, code, number in lines],
        ),
    ]
    said = [
        ("Price", f"the price of the code on sheet Prices, or the text {missing} where it has none"),
        ("Amount", "quantity times price, rounded to 2 digits; 0 without a price"),
    ]
    sheets: dict[str, Rows] = {
        "Orders": [("Order", "Code", "Quantity", "Price", "Amount"), *lines],
        "Prices": [("Code", "Item", "Price"), *listed],
    }
    return _problem("Price the orders.", "Orders", sheets, said, columns, 4)


def bands(shape: random.Random, data: random.Random) -> Problem:
    """Grades by bands of points, and the fee of the grade."""
    count, grades = (
        shape.randint(14, 18),
        shape.choice((("F", "D", "C", "B", "A"), ("none", "iron", "bronze", "silver", "gold"))),
    )
    limits = [0, *sorted(data.sample(range(20, 95, 5), 4))]
    fees = [data.randint(5, 90) for _ in grades]
    lines = [(name, data.randint(0, 100)) for name in data.sample(LAST_NAMES, count)]
    at = [max(place for place, limit in enumerate(limits) if limit <= points) for _, points in lines]
    columns = [
        Column("Grade", "=VLOOKUP(B{r},Bands!$A$2:$C$6,2,TRUE)", [grades[one] for one in at]),
        Column("Fee", "=VLOOKUP(B{r},Bands!$A$2:$C$6,3,TRUE)", [fees[one] for one in at]),
    ]
    said = [
        ("Grade", "the grade of the band of sheet Bands in which the points lie"),
        ("Fee", "the fee of that band"),
    ]
    table: Rows = [("Points from", "Grade", "Fee"), *zip(limits, grades, fees, strict=True)]
    sheets: dict[str, Rows] = {"Results": [("Name", "Points", "Grade", "Fee"), *lines], "Bands": table}
    return _problem("Grade the results.", "Results", sheets, said, columns, 3)


def freight(shape: random.Random, data: random.Random) -> Problem:
    """A rate by zone and class, times the weight."""
    count = shape.randint(12, 16)
    zones, classes = (
        shape.sample(("Z1", "Z2", "Z3", "Z4", "Z5"), 5),
        shape.sample(("letter", "parcel", "pallet", "bulk"), 4),
    )
    rates = {(zone, one): data.randint(10, 400) / 100 for zone in zones for one in classes}
    lines = [
        (f"S{at:03d}", data.choice(zones), data.choice(classes), data.randint(1, 300)) for at in range(count)
    ]
    found = [rates[zone, one] for _, zone, one, _ in lines]
    find = "=INDEX(Rates!$B$2:$E$6,MATCH(B{r},Rates!$A$2:$A$6,0),MATCH(C{r},Rates!$B$1:$E$1,0))"
    columns = [
        Column("Rate", find, found),
        Column(
            "Cost",
            "=ROUND(D{r}*E{r},2)",
            [rounded(line[3] * rate) for line, rate in zip(lines, found, strict=True)],
        ),
    ]
    said = [
        ("Rate", "the rate of the zone (row) and the class (column) on sheet Rates"),
        ("Cost", "weight times rate, rounded to 2 digits"),
    ]
    matrix: list[tuple[Value, ...]] = [("Zone", *classes)]
    matrix += [(zone, *(rates[zone, one] for one in classes)) for zone in zones]
    sheets: dict[str, Rows] = {
        "Shipments": [("Shipment", "Zone", "Class", "Weight", "Rate", "Cost"), *lines],
        "Rates": matrix,
    }
    return _problem("Work out the freight.", "Shipments", sheets, said, columns, 5)


def managers(shape: random.Random, data: random.Random) -> Problem:
    """The department and the manager's name of a person: a lookup of what a lookup found."""
    count = shape.randint(12, 15)
    size = 18
    ids = data.sample(range(100, 1000), size)
    names = [
        f"{first} {last}"
        for first, last in zip(data.sample(FIRST_NAMES, size), data.sample(LAST_NAMES, size), strict=True)
    ]
    staff = [
        (name, data.choice(DEPARTMENTS), number, data.choice([one for one in ids if one != number]))
        for name, number in zip(names, ids, strict=True)
    ]
    of = {number: (name, department, above) for name, department, number, above in staff}
    lines: list[tuple[Value, ...]] = [(f"T{at + 1:02d}", data.choice(ids)) for at in range(count)]
    people = [of[int(str(number))] for _, number in lines]
    row = "MATCH(B{r},Staff!$C$2:$C$19,0)"
    columns = [
        Column("Department", f"=INDEX(Staff!$B$2:$B$19,{row})", [one[1] for one in people]),
        Column(
            "Manager",
            f"=INDEX(Staff!$A$2:$A$19,MATCH(INDEX(Staff!$D$2:$D$19,{row}),Staff!$C$2:$C$19,0))",
            [of[one[2]][0] for one in people],
        ),
    ]
    said = [
        ("Department", "the department of the person with that number on sheet Staff"),
        ("Manager", "the name of that person's manager: column D of sheet Staff has the manager's number"),
    ]
    heads = ("Name", "Department", "Number", "Manager number")
    sheets: dict[str, Rows] = {
        "Tickets": [("Ticket", "Number", "Department", "Manager"), *lines],
        "Staff": [heads, *staff],
    }
    return _problem("Say who answers for each ticket.", "Tickets", sheets, said, columns, 3)


def _problem(
    title: str,
    sheet: str,
    sheets: dict[str, Rows],
    said: list[tuple[str, str]],
    columns: list[Column],
    left: int,
) -> Problem:
    text = f"{title} Fill in\n{asked(sheet, (2, left), said, len(columns[0].values))}\n{_KEEP}"
    return Problem(text, sheets, column_targets(sheet, (2, left), columns))


KINDS = (
    Kind(FAMILY, "prices", prices),
    Kind(FAMILY, "bands", bands),
    Kind(FAMILY, "freight", freight),
    Kind(FAMILY, "managers", managers),
)
