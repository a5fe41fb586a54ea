"""Whether head lost against its predecessor: a test by betting that may be looked at after every pair.

Each bet starts with wealth 1 and puts a share of it on "head did worse" before each pair is seen. As long as
head is not worse, the wealth is a supermartingale, so that it reaches 1 / alpha with a probability of at most
alpha, however often one looks (Ville 1939; Waudby-Smith and Ramdas 2024). One bet is on success over all
tasks, one on each family, one on each trigger; what decides is their mean with fixed weights, which is such a
wealth itself. The tasks of pairs must be drawn at random with replacement, with fresh seeds.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

ALPHA: Final = 0.01
STAKES: Final = (0.03, 0.06, 0.12, 0.25, 0.5, 0.9)
_WEIGHTS: Final = {"success": 0.6, "families": 0.2, "triggers": 0.2}


class Trigger(StrEnum):
    """What must not happen more often than to the predecessor, whatever it does to success."""

    FAILED = "failed"  # attributable failures
    UNREADABLE = "unreadable"  # a turn that could not be parsed
    EMPTY = "empty"  # an answer without text


@dataclass(frozen=True, slots=True)
class Play:
    """How one version did at a task; a failed play is no success. Plays lost to infrastructure are left out,
    and their pair with them."""

    success: bool
    triggers: frozenset[Trigger] = frozenset()


@dataclass(frozen=True, slots=True)
class Pair:
    """Head and its predecessor on one task."""

    family: str
    head: Play
    predecessor: Play


@dataclass(frozen=True, slots=True)
class Bet:
    """The logarithm of the wealth of each stake, after `pairs` pairs; those that differed are counted."""

    name: str
    pairs: int = 0
    worse: int = 0
    better: int = 0
    wealth: tuple[float, ...] = (0.0,) * len(STAKES)

    def after(self, loss: int) -> "Bet":
        """loss: 1 where head did worse, -1 where the predecessor did, 0 where they did alike."""
        if loss == 0:
            return replace(self, pairs=self.pairs + 1)
        wealth = tuple(w + math.log1p(stake * loss) for w, stake in zip(self.wealth, STAKES, strict=True))
        return Bet(self.name, self.pairs + 1, self.worse + (loss > 0), self.better + (loss < 0), wealth)

    @property
    def log_wealth(self) -> float:
        """Of the mean over the stakes."""
        return _log_mean(self.wealth)


@dataclass(frozen=True, slots=True)
class Watch:
    """What is known of a head against its predecessor. families: of the held-out set, known before the first
    pair. Start with `Watch.of(families)`, fold pairs with `after`."""

    bets: Mapping[str, Bet]
    weights: Mapping[str, float]
    alpha: float = ALPHA
    pairs: int = 0
    highest: float = 0.0  # log wealth so far; a verdict stands whatever comes after
    cause: str = ""  # the bet that contributed most when the limit was passed

    @classmethod
    def of(cls, families: Iterable[str], alpha: float = ALPHA) -> "Watch":
        """Before the first pair."""
        names = sorted(set(families))
        weights = {"success": _WEIGHTS["success"]}
        weights |= {f"family {name}": _WEIGHTS["families"] / len(names) for name in names}
        weights |= {trigger.value: _WEIGHTS["triggers"] / len(Trigger) for trigger in Trigger}
        return cls({name: Bet(name) for name in weights}, weights, alpha)

    @property
    def is_lost(self) -> bool:
        """Head is to be rolled back."""
        return bool(self.cause)

    def after(self, pair: Pair) -> "Watch":
        """The watch after one more pair. Raises KeyError for a family that was not named at the start."""
        loss = pair.predecessor.success - pair.head.success
        changed = {"success": loss, f"family {pair.family}": loss}
        for trigger in Trigger:
            changed[trigger.value] = (trigger in pair.head.triggers) - (trigger in pair.predecessor.triggers)
        bets = {**self.bets, **{name: self.bets[name].after(x) for name, x in changed.items()}}
        parts = {name: math.log(self.weights[name]) + bet.log_wealth for name, bet in bets.items()}
        total = _log_sum(parts.values())
        cause = self.cause
        if not cause and total >= -math.log(self.alpha):
            cause = max(parts, key=parts.__getitem__)
        return Watch(bets, self.weights, self.alpha, self.pairs + 1, max(self.highest, total), cause)


def _log_mean(logs: Iterable[float]) -> float:
    values = tuple(logs)
    return _log_sum(values) - math.log(len(values))


def _log_sum(logs: Iterable[float]) -> float:
    values = tuple(logs)
    top = max(values)
    return top + math.log(math.fsum(math.exp(value - top) for value in values))
