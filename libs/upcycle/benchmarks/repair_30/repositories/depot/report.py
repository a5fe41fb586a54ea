"""What is there, and what has to be ordered."""

from depot.model import Lot


def totals(lots: list[Lot]) -> dict[str, int]:
    """Pieces by item, in the order of the items' names."""
    found: dict[str, int] = {}
    for lot in lots:
        found[lot.item] = found.get(lot.item, 0) + lot.pieces
    return dict(sorted(found.items()))


def reorder(lots: list[Lot], least: dict[str, int]) -> dict[str, int]:
    """How many pieces to order of each item that is below its least number; items at it are left out."""
    there = totals(lots)
    return {
        item: number - there.get(item, 0) for item, number in least.items() if there.get(item, 0) < number
    }
