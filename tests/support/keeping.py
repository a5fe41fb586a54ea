"""How much an object keeps: what is kept per run, version or engine must have a bound or an end."""

from collections.abc import Sized


def num_kept(thing: object) -> int:
    """Entries of its own dicts, sets and lists."""
    return sum(len(value) for value in vars(thing).values() if isinstance(value, Sized))
