"""Summary tables: totals, counts and shares of a long list, by the labels that a second sheet has."""

import datetime
import random
from collections.abc import Sequence

from ..book import Rows, Value, cell_name
from ..problems import Column, Kind, Problem, Target, asked, column_targets, rounded
from ..words import LAST_NAMES, PRODUCTS, REGIONS, TEAMS

FAMILY = "summaries"
_NUM_LINES = 60
_KEEP = (
    "Each must be a formula over sheet Data that stays right when the data change. "
    "Leave all other cells as they are."
)
_LAST = _NUM_LINES + 1


def by_region(shape: random.Random, data: random.Random) -> Problem:
    """Count, units and revenue of each region, and the largest order."""
    regions = shape.sample(REGIONS, shape.randint(4, 6))
    lines = [
        (data.choice(regions), data.choice(PRODUCTS), data.randint(1, 30), data.randint(500, 90_000) / 100)
        for _ in range(_NUM_LINES - len(regions))
    ]
    lines += [(region, data.choice(PRODUCTS), data.randint(1, 30), 10.0) for region in regions]
    data.shuffle(lines)
    of = [[line for line in lines if line[0] == region] for region in regions]
    where = f"Data!$A$2:$A${_LAST},A{{r}}"
    columns = [
        Column("Orders", f"=COUNTIF({where})", [len(one) for one in of]),
        Column(
            "Units", f"=SUMIFS(Data!$C$2:$C${_LAST},{where})", [sum(line[2] for line in one) for one in of]
        ),
        Column(
            "Revenue",
            f"=ROUND(SUMIFS(Data!$D$2:$D${_LAST},{where}),2)",
            [rounded(sum(line[3] for line in one)) for one in of],
        ),
        Column(
            "Largest", f"=MAXIFS(Data!$D$2:$D${_LAST},{where})", [max(line[3] for line in one) for one in of]
        ),
    ]
    said = [
        ("Orders", "how many rows of sheet Data the region has"),
        ("Units", "the sum of its units"),
        ("Revenue", "the sum of its revenue, rounded to 2 digits"),
        ("Largest", "its largest revenue"),
    ]
    heads = ("Region", "Product", "Units", "Revenue")
    return _by_label("Sum up the orders by region.", [heads, *lines], "Region", regions, columns, said)


def crossed(shape: random.Random, data: random.Random) -> Problem:
    """Revenue by product and quarter, with totals."""
    products, quarters = shape.sample(PRODUCTS, shape.randint(3, 4)), ("Q1", "Q2", "Q3", "Q4")
    lines = [(data.choice(products), data.choice(quarters), data.randint(10, 900)) for _ in range(_NUM_LINES)]
    total = {(p, q): sum(n for a, b, n in lines if (a, b) == (p, q)) for p in products for q in quarters}
    targets = [
        Target(
            "Summary",
            (row, column),
            total[product, quarter],
            f"=SUMIFS(Data!$C$2:$C${_LAST},Data!$A$2:$A${_LAST},$A{row},Data!$B$2:$B${_LAST},"
            f"{cell_name((1, column))[:1]}$1)",
            "Cells",
        )
        for row, product in enumerate(products, start=2)
        for column, quarter in enumerate(quarters, start=2)
    ]
    bottom = len(products) + 2
    for row, product in enumerate(products, start=2):
        value = sum(total[product, quarter] for quarter in quarters)
        targets.append(Target("Summary", (row, 6), value, f"=SUM(B{row}:E{row})", "Totals"))
    for column, quarter in enumerate(quarters, start=2):
        letter, value = cell_name((1, column))[:1], sum(total[product, quarter] for product in products)
        formula = f"=SUM({letter}2:{letter}{bottom - 1})"
        targets.append(Target("Summary", (bottom, column), value, formula, "Totals"))
    summary: Rows = [("Product", *quarters, "Total"), *((one,) for one in products), ("Total",)]
    text = (
        "Make the table of revenue by product and quarter on sheet Summary. Fill in\n"
        f"- Summary!B2:E{bottom - 1}: the revenue of the row's product "
        "in the column's quarter, 0 where there is none\n"
        f"- Summary!F2:F{bottom - 1}: the total of each product\n"
        f"- Summary!B{bottom}:E{bottom}: the total of each quarter\n{_KEEP}"
    )
    sheets: dict[str, Rows] = {"Data": [("Product", "Quarter", "Revenue"), *lines], "Summary": summary}
    return Problem(text, sheets, tuple(targets))


def scores(shape: random.Random, data: random.Random) -> Problem:
    """How many of each team passed, and their average."""
    teams, bar = shape.sample(TEAMS, shape.randint(4, 6)), shape.choice((50, 60, 65, 70))
    lines = [(data.choice(LAST_NAMES), team, data.randint(bar, 100)) for team in teams]
    lines += [
        (data.choice(LAST_NAMES), data.choice(teams), data.randint(20, 100))
        for _ in range(_NUM_LINES - len(lines))
    ]
    data.shuffle(lines)
    of = [[line[2] for line in lines if line[1] == team] for team in teams]
    where, passed = f"Data!$B$2:$B${_LAST},A{{r}}", f'Data!$C$2:$C${_LAST},">={bar}"'
    columns = [
        Column("Passed", f"=COUNTIFS({where},{passed})", [sum(n >= bar for n in one) for one in of]),
        Column(
            "Average",
            f"=ROUND(AVERAGEIFS(Data!$C$2:$C${_LAST},{where}),2)",
            [rounded(sum(one) / len(one)) for one in of],
        ),
        Column(
            "Pass rate",
            f"=ROUND(B{{r}}/COUNTIF({where}),3)",
            [rounded(sum(n >= bar for n in one) / len(one), 3) for one in of],
        ),
    ]
    said = [
        ("Passed", f"how many of the team have a score of at least {bar}"),
        ("Average", "the average score of the team, rounded to 2 digits"),
        ("Pass rate", "the share of the team that passed, from 0 to 1, rounded to 3 digits"),
    ]
    heads = ("Name", "Team", "Score")
    return _by_label("Compare the teams.", [heads, *lines], "Team", teams, columns, said)


def months(shape: random.Random, data: random.Random) -> Problem:
    """Sales by month, the share of the year, and the total so far."""
    year, names = shape.choice((2023, 2024, 2025)), range(1, 7)
    lines = [
        (datetime.date(year, data.randint(1, 6), data.randint(1, 28)), data.randint(20, 900))
        for _ in range(_NUM_LINES)
    ]
    of = [sum(amount for day, amount in lines if day.month == month) for month in names]
    whole = sum(of)
    running = [sum(of[: at + 1]) for at in range(len(of))]
    days, amounts = f"Data!$A$2:$A${_LAST}", f"Data!$B$2:$B${_LAST}"
    columns = [
        Column("Sales", f"=SUMPRODUCT((MONTH({days})=A{{r}})*{amounts})", of),
        Column("Share", f"=ROUND(B{{r}}/SUM({amounts}),4)", [rounded(one / whole, 4) for one in of]),
        Column("So far", "=SUM(B$2:B{r})", running),
    ]
    said = [
        ("Sales", "the sum of the amounts of that month"),
        ("Share", "its share of all sales, from 0 to 1, rounded to 4 digits"),
        ("So far", "the sales of the months up to this one"),
    ]
    # The total so far of the last month is the same formula as the total: it varies as the others do.
    return _by_label(
        "Sum up the sales by month.", [("Day", "Amount"), *lines], "Month", list(names), columns, said
    )


def _by_label(
    title: str,
    lines: Rows,
    label: str,
    labels: Sequence[Value],
    columns: list[Column],
    said: list[tuple[str, str]],
) -> Problem:
    summary: Rows = [(label, *(one.heading for one in columns)), *((one,) for one in labels)]
    text = f"{title} Fill in\n{asked('Summary', (2, 2), said, len(labels))}\n{_KEEP}"
    return Problem(text, {"Data": lines, "Summary": summary}, column_targets("Summary", (2, 2), columns))


KINDS = (
    Kind(FAMILY, "by region", by_region),
    Kind(FAMILY, "crossed", crossed),
    Kind(FAMILY, "scores", scores),
    Kind(FAMILY, "months", months),
)
