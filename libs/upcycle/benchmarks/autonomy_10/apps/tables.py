"""Tables: sheets of text cells; the first column names the row."""

from typing import Final

from ..errors import ActionRefused
from ..machine.state import Computer, StoredTable
from .page import Element, Page, go

MAX_ROWS: Final = 300
MAX_CELL_CHARS: Final = 500


def tables_page(machine: Computer) -> Page:
    """The place that the screen is at: tables, one table, one row, or a new row."""
    match machine.screen.place:
        case ["table", name]:
            return _table(machine, name)
        case ["row", name, number]:
            return _row(machine, name, int(number))
        case ["new", name]:
            return _new(machine, name)
    page = Page("Tables")
    for name, table in machine.tables.items():
        page.button(f"table:{name}", f"{len(table.rows)} rows", go(machine, "table", name))
    return page


def _table(machine: Computer, name: str) -> Page:
    table = machine.tables[name]
    page = Page(f"Tables: {name}", [" | ".join(["row", *table.columns])])
    for number, row in enumerate(table.rows, 1):
        page.button(f"row:{number}", " | ".join(row), go(machine, "row", name, str(number)))
    page.button("new", "add a row", go(machine, "new", name))
    page.button("back", "all tables", go(machine))
    return page


def _row(machine: Computer, name: str, number: int) -> Page:
    table = machine.tables[name]
    row = table.rows[number - 1]
    page = Page(f"Tables: {name}, row {number}")

    def cell(at: int, column: str) -> Element:
        def write(text: str) -> None:
            row[at] = _checked(text)

        return Element(f"cell:{column}", f"{column}: {row[at]}", write=write)

    def delete() -> None:
        table.rows.remove(row)
        go(machine, "table", name)()

    page.elements += [cell(at, column) for at, column in enumerate(table.columns)]
    page.button("delete", "delete the row", delete)
    page.button("back", f"to {name}", go(machine, "table", name))
    return page


def _new(machine: Computer, name: str) -> Page:
    table = machine.tables[name]
    page = Page(f"Tables: {name}, new row")
    values = [page.draft(machine.screen, f"cell:{column}", column) for column in table.columns]

    def save() -> None:
        _add(table, [_checked(value) for value in values])
        go(machine, "table", name)()

    page.button("save", "add the row", save)
    page.button("back", "leave it", go(machine, "table", name))
    return page


def _add(table: StoredTable, row: list[str]) -> None:
    if not row[0]:
        raise ActionRefused(f"the field cell:{table.columns[0]} is empty", "the first column names the row")
    if len(table.rows) >= MAX_ROWS:
        raise ActionRefused(f"the table has {MAX_ROWS} rows", "delete one first")
    table.rows.append(row)


def _checked(text: str) -> str:
    if len(text) > MAX_CELL_CHARS or not text.isprintable():
        raise ActionRefused(
            f"{text[:40]!r} has {len(text):,} characters",
            f"a cell holds one line of at most {MAX_CELL_CHARS}",
        )
    return text.strip()
