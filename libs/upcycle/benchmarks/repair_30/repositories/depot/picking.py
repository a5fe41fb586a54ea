"""Which lots an order is picked from: the oldest first."""

from depot.model import Lot, oldest_first


def pick(lots: list[Lot], item: str, wanted: int) -> tuple[list[tuple[int, int]], int]:
    """((day, pieces) of each lot that is touched, pieces that are missing)."""
    picked = []
    missing = wanted
    for lot in oldest_first(lots):
        if lot.item != item or missing == 0:
            continue
        taken = min(lot.pieces, missing)
        picked.append((lot.day, taken))
        missing -= taken
    return picked, missing


def cost(lots: list[Lot], item: str, wanted: int) -> int:
    """What the picked pieces cost when they arrived; missing pieces cost nothing."""
    total = 0
    for lot in oldest_first(lots):
        if lot.item == item:
            taken = min(lot.pieces, wanted)
            total += taken * lot.price
            wanted -= taken
    return total
