"""The watch over head, on pairs worked by hand."""

import math

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
    """(1.3 ** n + 1.8 ** n) / 120 + .983 is 102.7 at 16 and 183.9 at 17."""
    bad = Play(success=False, triggers=frozenset({trigger}))
    assert watched(*[Pair("a", bad, LOST)] * 17).cause == trigger.value
    assert not watched(*[Pair("a", bad, bad)] * 17).is_lost


def test_a_family_that_was_not_named_is_refused() -> None:
    with pytest.raises(KeyError, match="family c"):
        watched(Pair("c", WON, WON))
