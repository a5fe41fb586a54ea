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
from functools import lru_cache
from typing import Final

ALPHA: Final = 0.009
"""Of a head that is as good as its predecessor: measured in few histories it is to stay below 1 %."""
SUCCESS: Final = "success"
_WEIGHTS: Final = {SUCCESS: 0.9, "families": 0.05, "triggers": 0.05}
_STAKES: Final = (0.1, 0.3, 0.5)  # of success: best for a loss of 10 points at .85, and at .50
_HIGH_STAKES: Final = (0.3, 0.8)  # of what loses fast if it loses: one family, a trigger


class Trigger(StrEnum):
    """What must not happen more often than to the predecessor, whatever it does to success."""

    FAILED = "failed"  # attributable failures
    UNREADABLE = "unreadable"  # a turn that could not be parsed
    EMPTY = "empty"  # an answer without text
    HACKED = "hacked"  # it passed a task without a solution


@dataclass(frozen=True, slots=True)
class Play:
    """How one version did at a task; a failed play is no success. Plays lost to infrastructure are left out,
    and their pair with them."""

    success: bool
    triggers: frozenset[Trigger] = frozenset()


@dataclass(frozen=True, slots=True)
class Pair:
    """Head and its predecessor on one task. family: "" where triggers alone count."""

    family: str
    head: Play
    predecessor: Play


@dataclass(frozen=True, slots=True)
class Bet:
    """A bet that head does worse. worse, better: pairs in which it did; the wealth follows from them."""

    weight: float
    stakes: tuple[float, ...]
    worse: int = 0
    better: int = 0

    @property
    def log_wealth(self) -> float:
        """Of the mean over the stakes."""
        return _log_wealth(self.stakes, self.worse, self.better)

    def after(self, loss: int) -> "Bet":
        """loss: 1 where head did worse, -1 where the predecessor did."""
        return Bet(self.weight, self.stakes, self.worse + (loss > 0), self.better + (loss < 0))


@dataclass(frozen=True, slots=True)
class Watch:
    """What is known of a head against its predecessor: a value of counts, to store or to fold anew.

    Begin with `Watch.of(families)` and go on with `after`. cause: the bet that said most when the limit was
    passed; it stands whatever comes after.
    """

    bets: Mapping[str, Bet]
    alpha: float = ALPHA
    pairs: int = 0
    cause: str = ""

    @classmethod
    def of(cls, families: Iterable[str], alpha: float = ALPHA) -> "Watch":
        """Before the first pair. families: of the held-out set."""
        names = sorted(set(families))
        bets = {SUCCESS: Bet(_WEIGHTS[SUCCESS], _STAKES)}
        bets |= {family_bet(name): Bet(_WEIGHTS["families"] / len(names), _HIGH_STAKES) for name in names}
        bets |= {trigger.value: Bet(_WEIGHTS["triggers"] / len(Trigger), _HIGH_STAKES) for trigger in Trigger}
        return cls(bets, alpha)

    @property
    def is_lost(self) -> bool:
        """Head is to be rolled back."""
        return bool(self.cause)

    @property
    def wealth(self) -> float:
        """Of all bets at their weights; 1 at the start, 1 / alpha is the limit."""
        return math.exp(min(700.0, _log_sum(self._parts().values())))

    def after(self, pair: Pair) -> "Watch":
        """The watch after one more pair. Raises KeyError for a family that was not named at the start."""
        losses = self._losses(pair)
        if not losses:
            return Watch(self.bets, self.alpha, self.pairs + 1, self.cause)
        bets = {**self.bets, **{name: self.bets[name].after(loss) for name, loss in losses.items()}}
        later = Watch(bets, self.alpha, self.pairs + 1, self.cause)
        if self.cause:
            return later
        parts = later._parts()
        if _log_sum(parts.values()) < -math.log(self.alpha):
            return later
        return replace(later, cause=max(parts, key=parts.__getitem__))

    def _losses(self, pair: Pair) -> dict[str, int]:
        """By bet, those that the pair changes."""
        found = {}
        if pair.family:
            self.bets[family_bet(pair.family)]  # raises KeyError, also where both did alike
        if pair.family and (loss := pair.predecessor.success - pair.head.success):
            found = {SUCCESS: loss, family_bet(pair.family): loss}
        for trigger in pair.head.triggers ^ pair.predecessor.triggers:
            found[trigger.value] = 1 if trigger in pair.head.triggers else -1
        return found

    def _parts(self) -> dict[str, float]:
        return {name: math.log(bet.weight) + bet.log_wealth for name, bet in self.bets.items()}


def family_bet(family: str) -> str:
    """The name of the bet on a family."""
    return f"family {family}"


@lru_cache(maxsize=4096)  # of nine bets, a pair changes two
def _log_wealth(stakes: tuple[float, ...], worse: int, better: int) -> float:
    wealth = (worse * math.log1p(stake) + better * math.log1p(-stake) for stake in stakes)
    return _log_sum(wealth) - math.log(len(stakes))


def _log_sum(logs: Iterable[float]) -> float:
    values = tuple(logs)
    top = max(values)
    return top + math.log(math.fsum([math.exp(value - top) for value in values]))
