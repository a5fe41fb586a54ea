"""Accounts: balances in cents, after transfers in order."""

Transfer = tuple[str, str, int]


def balances(opening: dict[str, int], transfers: list[Transfer]) -> dict[str, int]:
    """Balances by account; a transfer that its account cannot pay is left out."""
    found = dict(opening)
    for source, target, cents in transfers:
        if found.get(source, 0) >= cents:
            found[source] = found.get(source, 0) - cents
            found[target] = found.get(target, 0) + cents
    return found


def refused(opening: dict[str, int], transfers: list[Transfer]) -> list[int]:
    """The places of the transfers that are left out, from 0."""
    found = []
    for at in range(len(transfers)):
        before = balances(opening, transfers[:at])
        if before.get(transfers[at][0], 0) < transfers[at][2]:
            found.append(at)
    return found
