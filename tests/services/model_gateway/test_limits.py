"""What a key may use: rates, concurrency, money; each refusal changes nothing and says when to come back."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.services.model_gateway.conftest import Clock

from model_gateway.domain.limits import BudgetSpent, KeyLimits, KeyMeter, LimitReached

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)


@pytest.fixture
def meter(clock: Clock) -> KeyMeter:
    return KeyMeter(monotonic=clock)


def end(meter: KeyMeter, tokens: int = 0, cost: float = 0.0, reserved: float = 0.0) -> None:
    meter.ended(tokens, cost, reserved, NOON)


def test_requests_a_minute_come_back_one_by_one(meter: KeyMeter, clock: Clock) -> None:
    limits = KeyLimits(requests_per_minute=2)
    for _ in range(2):
        meter.admit("k", limits)
        end(meter)
    with pytest.raises(LimitReached, match="'k' may use 2 requests a minute") as refused:
        meter.admit("k", limits)
    assert (refused.value.limit, refused.value.retry_after_s) == ("requests_per_minute", 30.0)
    clock.now_s = 29.9
    with pytest.raises(LimitReached):
        meter.admit("k", limits)
    clock.now_s = 30.1
    meter.admit("k", limits)


def test_tokens_are_counted_when_a_request_ends_and_may_be_overdrawn(meter: KeyMeter, clock: Clock) -> None:
    limits = KeyLimits(tokens_per_minute=60)
    meter.admit("k", limits)
    end(meter, tokens=90)
    with pytest.raises(LimitReached, match="60 tokens") as refused:
        meter.admit("k", limits)
    assert refused.value.retry_after_s == 31.0, "30 tokens are owed and one is wanted, at one a second"
    clock.now_s = 31.0
    meter.admit("k", limits)


def test_requests_at_once_are_let_in_as_others_end(meter: KeyMeter) -> None:
    limits = KeyLimits(concurrency=1)
    meter.admit("k", limits)
    with pytest.raises(LimitReached, match="1 requests in flight"):
        meter.admit("k", limits)
    end(meter)
    meter.admit("k", limits)


def test_a_refusal_takes_nothing(meter: KeyMeter, clock: Clock) -> None:
    limits = KeyLimits(requests_per_minute=60, concurrency=1)
    meter.admit("k", limits)
    for _ in range(100):
        with pytest.raises(LimitReached, match="in flight"):
            meter.admit("k", limits)
    end(meter)
    for _ in range(59):
        meter.admit("k", limits)
        end(meter)
    assert meter.in_flight == 0


def test_money_in_flight_counts_as_spent_until_it_is_known(meter: KeyMeter) -> None:
    limits = KeyLimits(cost_per_day=1.0)
    meter.reserve("k", limits, 0.5, NOON)
    with pytest.raises(BudgetSpent, match=r"and 0\.5 may go to .* this one may cost 0\.75: name a smaller"):
        meter.reserve("k", limits, 0.75, NOON)
    meter.reserve("k", limits, 0.5, NOON)
    with pytest.raises(BudgetSpent, match="spent 0 of 1 today, and 1 may go to") as refused:
        meter.reserve("k", limits, 0.01, NOON)
    assert refused.value.retry_after_s == 12 * 3600
    for _ in range(2):
        meter.in_flight += 1
        end(meter, cost=0.25, reserved=0.5)
    meter.reserve("k", limits, 0.01, NOON)
    assert meter.spent(NOON) == 0.5


def test_a_new_day_has_a_new_budget(meter: KeyMeter) -> None:
    limits = KeyLimits(cost_per_day=1.0)
    meter.stored(1.5, NOON)
    with pytest.raises(BudgetSpent):
        meter.reserve("k", limits, 0.1, NOON)
    meter.reserve("k", limits, 0.1, NOON + timedelta(hours=12))
    assert meter.read_at_s is None, "the database is asked again for the new day"


def test_what_other_replicas_spent_counts_and_ours_is_not_forgotten(meter: KeyMeter) -> None:
    meter.stored(1.0, NOON)
    meter.in_flight = 1
    end(meter, cost=0.5)
    meter.stored(1.2, NOON)
    assert meter.spent(NOON) == 1.5, "our half is on its way to the database"
    meter.stored(2.0, NOON)
    assert meter.spent(NOON) == 2.0


def test_a_keys_own_limit_stands_before_that_of_the_settings() -> None:
    own, defaults = KeyLimits(concurrency=2), KeyLimits(concurrency=8, cost_per_day=5.0)
    assert own.over(defaults) == KeyLimits(concurrency=2, cost_per_day=5.0)
