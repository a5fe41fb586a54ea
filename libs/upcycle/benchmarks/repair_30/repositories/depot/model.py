"""Lots: so many pieces of an item that arrived on one day at one price."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Lot:
    item: str
    pieces: int
    day: int
    price: int


def lots_of(rows: list[tuple[str, int, int, int]]) -> list[Lot]:
    """Lots from (item, pieces, day, price), without the empty ones."""
    return [Lot(*row) for row in rows if row[1] > 0]


def oldest_first(lots: list[Lot]) -> list[Lot]:
    """By day; of one day the cheapest first."""
    return sorted(lots, key=lambda lot: (lot.day, lot.price))
