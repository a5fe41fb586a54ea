"""The idle share of slots, by hand."""

import pytest

from service_kit.idleness import SlotMeter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_idle_share_is_weighted_by_time() -> None:
    clock = Clock()
    meter = SlotMeter(4, window_s=10, now=clock)
    assert meter.idle_ratio() == 1.0
    with meter.playing(), meter.playing():
        clock.now += 4  # two of four slots for 4 s
        assert meter.idle_ratio() == pytest.approx(0.5)
    clock.now += 4  # none for 4 s: 8 of 32 slot-seconds
    assert meter.idle_ratio() == pytest.approx(0.75)


def test_only_the_window_counts_also_when_nothing_changes() -> None:
    clock = Clock()
    meter = SlotMeter(1, window_s=10, now=clock)
    with meter.playing():
        clock.now += 20
        assert meter.idle_ratio() == 0.0
    clock.now += 5
    assert meter.idle_ratio() == pytest.approx(0.5)  # busy in the first half of the last 10 s
    clock.now += 2.5
    assert meter.idle_ratio() == pytest.approx(0.75)
    clock.now += 50
    assert meter.idle_ratio() == 1.0


def test_many_changes_do_not_pile_up() -> None:
    clock = Clock()
    meter = SlotMeter(2, window_s=10, now=clock)
    for _ in range(1000):
        with meter.playing():
            clock.now += 0.5
        clock.now += 0.5
    assert len(meter._marks) < 30
    assert meter.idle_ratio() == pytest.approx(0.75)


def test_a_slot_that_fails_is_free_again() -> None:
    clock = Clock()
    meter = SlotMeter(1, window_s=10, now=clock)

    def play() -> None:
        with meter.playing():
            clock.now += 1
            raise RuntimeError("bug")

    with pytest.raises(RuntimeError):
        play()
    clock.now += 1
    assert meter.idle_ratio() == pytest.approx(0.5)
