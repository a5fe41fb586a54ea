"""Questions to a table."""


def number(text: str) -> int:
    """The number in a cell: spaces and underscores are ignored, an empty cell is 0."""
    plain = text.replace(" ", "").replace("_", "")
    return int(plain) if plain else 0


def sums(rows: list[dict[str, str]], by: str, of: str) -> dict[str, int]:
    """The sum of a column for each value of another one, in the order in which those appear."""
    found: dict[str, int] = {}
    for row in rows:
        found[row[by]] = found.get(row[by], 0) + number(row[of])
    return found


def top(rows: list[dict[str, str]], column: str, count: int) -> list[dict[str, str]]:
    """The rows with the largest numbers, the largest first; of equal ones the earlier row first."""
    return sorted(rows, key=lambda row: -number(row[column]))[:count]
