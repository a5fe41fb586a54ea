"""Service names, and how they are divided between the splits.

A name joins two words, `amber-cart`. Every word occurs in both splits; every *pair* belongs to one of them
only. So a policy knows the words of a held-out name and has never seen the name.
"""

import random
from typing import Literal

Split = Literal["train", "held_out"]
Names = Literal["new", "few"]
"""new: those of a held-out task occur in no training task. few: the sixteen of FEW in every task, for tiny
models, which take long to learn to copy a name that they have never seen."""
SPLITS: tuple[Split, ...] = ("train", "held_out")

FIRST = (
    "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "indigo", "juniper",
    "koala", "lunar", "maple", "nova", "onyx", "panda", "quartz", "river", "solar", "tulip",
    "umber", "velvet", "willow", "zephyr", "acorn", "basil", "coral", "dune", "falcon", "garnet",
    "hazel", "ivory", "jade", "kelp", "lotus", "moss", "orchid", "pearl", "sable", "topaz",
)  # fmt: skip
SECOND = (
    "api", "auth", "bill", "cache", "cart", "chat", "crm", "docs", "feed", "gate", "geo", "hook",
    "item", "jobs", "ledger", "mail", "notes", "orders", "pay", "queue", "rates", "search", "stock",
    "vault", "ads", "bids", "blog", "coupon", "depot", "email", "forms", "graph", "host", "index",
    "label", "media", "photo", "quota", "reports", "tax",
)  # fmt: skip

FEW = tuple(f"{FIRST[place]}-{SECOND[place + 1]}" for place in range(16))

# One pair in ten is held out; the diagonal pattern keeps every word in both splits.
_HELD_OUT_EVERY = 10


def split_of(name: str) -> Split:
    """Which split may use this service name. Raises ValueError for a name that no split has."""
    first, _, second = name.partition("-")
    if first not in FIRST or second not in SECOND:
        raise ValueError(f"{name!r} is not a service name: join a word of FIRST and a word of SECOND by '-'")
    held_out = (FIRST.index(first) + SECOND.index(second)) % _HELD_OUT_EVERY == 0
    return "held_out" if held_out else "train"


def service_names(split: Split) -> tuple[str, ...]:
    """All names of one split, in a fixed order."""
    names = (f"{first}-{second}" for first in FIRST for second in SECOND)
    return tuple(name for name in names if split_of(name) == split)


def draw_services(rng: random.Random, split: Split, count: int, names: Names = "new") -> list[str]:
    """Distinct names of one split that share no word with each other, so that a word tells them apart."""
    if names == "few":
        return rng.sample(FEW, count)
    drawn: list[str] = []
    words: set[str] = set()
    while len(drawn) < count:
        first, second = rng.choice(FIRST), rng.choice(SECOND)
        name = f"{first}-{second}"
        if split_of(name) == split and not words & {first, second}:
            drawn.append(name)
            words |= {first, second}
    return drawn
