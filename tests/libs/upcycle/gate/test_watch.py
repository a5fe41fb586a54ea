"""The watch over head, on pairs worked by hand."""

import math
import random

import pytest

from upcycle.gate.watch import SUCCESS, Pair, Play, Trigger, Watch

WON, LOST = Play(success=True), Play(success=False)


def watched(*pairs: Pair, families: tuple[str, ...] = ("a", "b")) -> Watch:
    watch = Watch.of(families)
    for pair in pairs:
        watch = watch.after(pair)
    return watch


def test_the_weights_make_one_wealth_that_begins_at_1() -> None:
    assert watched().wealth == pytest.approx(1)


def test_wealth_after_one_loss_and_one_win_is_that_of_the_stakes() -> None:
    """Stakes .1, .3, .5 on success: .99, .91, .75, mean .8833. Stakes .3, .8 on the family: .91, .36, mean
    .635. Success has .9, each of 2 families .025, the triggers .05, which saw nothing."""
    watch = watched(Pair("a", LOST, WON), Pair("a", WON, LOST))
    assert math.exp(watch.bets[SUCCESS].log_wealth) == pytest.approx(2.65 / 3)
    assert watch.wealth == pytest.approx(0.3 * 2.65 + 0.025 * 0.635 + 0.025 + 0.05)


def test_pairs_without_a_difference_leave_the_wealth_alone() -> None:
    watch = watched(*[Pair("a", WON, WON), Pair("b", LOST, LOST)] * 500)
    assert watch.wealth == pytest.approx(1)
    assert (watch.pairs, watch.is_lost) == (1000, False)


EVERY_PAIR = [Pair("a", LOST, WON), Pair("b", LOST, WON)] * 8


def test_a_head_that_loses_every_pair_is_lost_after_15() -> None:
    """.3 · (1.1 ** n + 1.3 ** n + 1.5 ** n), .0125 · (1.3 ** m + 1.8 ** m) of each family, and .05: 102.3
    at 14 pairs, 150 at 15; the limit is 1 / .009 = 111."""
    assert watched(*EVERY_PAIR[:14]).wealth == pytest.approx(102.3, abs=0.2)
    assert not watched(*EVERY_PAIR[:14]).is_lost
    assert watched(*EVERY_PAIR[:15]).cause == SUCCESS


def test_a_verdict_stands_whatever_comes_after() -> None:
    watch = watched(*EVERY_PAIR, *[Pair("a", WON, LOST)] * 50)
    assert watch.is_lost
    assert watch.wealth < 1000


def test_a_family_that_loses_is_named_though_the_others_gain() -> None:
    pairs = [Pair("a", LOST, WON), Pair("b", WON, LOST)] * 16
    assert watched(*pairs).cause == "family a"


@pytest.mark.parametrize("trigger", list(Trigger))
def test_failures_unreadable_turns_and_empty_answers_roll_back_though_success_is_equal(
    trigger: Trigger,
) -> None:
    """(1.3 ** n + 1.8 ** n) / 160 + .9875 is 77.3 at 16 and 138.1 at 17."""
    bad = Play(success=False, triggers=frozenset({trigger}))
    assert watched(*[Pair("a", bad, LOST)] * 17).cause == trigger.value
    assert not watched(*[Pair("a", bad, bad)] * 17).is_lost


def test_a_family_that_was_not_named_is_refused() -> None:
    with pytest.raises(KeyError, match="family c"):
        watched(Pair("c", WON, WON))


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_go_as_if_every_bet_was_reckoned_anew_at_each_pair(seed: int) -> None:
    rng = random.Random(seed)
    families = tuple(f"f{at}" for at in range(rng.choice([1, 4])))
    success, rate = rng.random(), rng.choice([0.0, 0.3])
    watch, reckoned = Watch.of(families), Reckoned(families)
    for _ in range(200):
        pair = Pair(rng.choice(families), _played(rng, 0.8 * success, rate), _played(rng, success, rate / 2))
        watch = watch.after(pair)
        reckoned.see(pair)
        assert watch.wealth == pytest.approx(reckoned.wealth)
        assert watch.cause in reckoned.causes


def _played(rng: random.Random, success: float, rate: float) -> Play:
    return Play(rng.random() < success, frozenset(one for one in Trigger if rng.random() < rate))


class Reckoned:
    """The definition: every bet multiplied on, pair by pair."""

    def __init__(self, families: tuple[str, ...]) -> None:
        self._bets = {SUCCESS: (0.9, [1.0] * 3)}
        self._bets |= {f"family {name}": (0.05 / len(families), [1.0] * 2) for name in families}
        self._bets |= {one.value: (0.05 / len(Trigger), [1.0] * 2) for one in Trigger}
        self.causes = {""}

    def see(self, pair: Pair) -> None:
        losses = {SUCCESS: pair.predecessor.success - pair.head.success}
        losses[f"family {pair.family}"] = losses[SUCCESS]
        losses |= {t.value: (t in pair.head.triggers) - (t in pair.predecessor.triggers) for t in Trigger}
        for name, loss in losses.items():
            stakes = (0.1, 0.3, 0.5) if name == SUCCESS else (0.3, 0.8)
            self._bets[name][1][:] = [
                wealth * (1 + stake * loss) for wealth, stake in zip(self._bets[name][1], stakes, strict=True)
            ]
        if self.causes == {""} and self.wealth > 1 / 0.009:
            most = max(self._parts().values())
            self.causes = {name for name, part in self._parts().items() if part > most * (1 - 1e-9)}

    @property
    def wealth(self) -> float:
        return sum(self._parts().values())

    def _parts(self) -> dict[str, float]:
        return {name: weight * sum(all_) / len(all_) for name, (weight, all_) in self._bets.items()}


def test_a_pair_of_no_family_counts_its_triggers_alone() -> None:
    hacked = Play(success=True, triggers=frozenset({Trigger.HACKED}))
    watch = watched(*[Pair("", hacked, LOST)] * 17)
    assert watch.cause == "hacked"
    assert watch.bets[SUCCESS].better == 0
