"""When a provider is not asked, when it is asked again, and how many tries it gets."""

import pytest
from tests.services.model_gateway.conftest import Clock

from model_gateway.domain.upstream.breaker import Circuit, CircuitBreaker, RetryBudget
from model_gateway.domain.upstream.errors import UpstreamPaused
from model_gateway.domain.upstream.providers import Provider, ProviderLimits, UpstreamDialect

LIMITS = ProviderLimits(opens_after=3, open_s=10.0)


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    provider = Provider("acme", "http://acme", UpstreamDialect.OPENAI, "", LIMITS)
    return CircuitBreaker(provider, monotonic=clock)


def fail(breaker: CircuitBreaker, times: int) -> None:
    for _ in range(times):
        breaker.failed(breaker.enter())


def test_failures_in_a_row_open_it_and_a_success_between_does_not(breaker: CircuitBreaker) -> None:
    fail(breaker, 2)
    breaker.succeeded(breaker.enter())
    fail(breaker, 2)
    assert breaker.state() is Circuit.CLOSED
    fail(breaker, 1)
    assert breaker.state() is Circuit.OPEN
    with pytest.raises(UpstreamPaused, match="'acme' failed 3 times in a row") as paused:
        breaker.enter()
    assert paused.value.retry_after_s == 10.0


def test_one_request_probes_and_its_success_closes_it(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now_s = 10.0
    assert breaker.state() is Circuit.HALF_OPEN
    is_probe = breaker.enter()
    assert is_probe
    with pytest.raises(UpstreamPaused):
        breaker.enter()
    breaker.succeeded(is_probe)
    assert breaker.state() is Circuit.CLOSED
    assert not breaker.enter()


def test_a_probe_that_fails_opens_it_again_for_the_whole_time(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now_s = 12.0
    breaker.failed(breaker.enter())
    clock.now_s = 21.9
    assert breaker.state() is Circuit.OPEN
    clock.now_s = 22.0
    assert breaker.state() is Circuit.HALF_OPEN


def test_a_probe_whose_client_left_decides_nothing_and_lets_the_next_one_in(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    fail(breaker, 3)
    clock.now_s = 10.0
    breaker.left(breaker.enter())
    assert breaker.enter()


def test_what_was_sent_before_it_opened_neither_closes_it_nor_opens_it_longer(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    early = [breaker.enter(), breaker.enter()]
    fail(breaker, 3)
    clock.now_s = 9.0
    breaker.succeeded(early[0])
    breaker.failed(early[1])
    assert breaker.state() is Circuit.OPEN
    clock.now_s = 10.0
    assert breaker.state() is Circuit.HALF_OPEN


def test_retries_are_a_share_of_the_requests_after_the_first_few() -> None:
    budget = RetryBudget(0.1)
    taken = 0
    for _ in range(100):
        budget.request()
        taken += budget.take() + budget.take()
    assert 12 <= taken <= 13, "three to begin with, and a tenth of a hundred"


def test_without_a_share_nothing_is_tried_again() -> None:
    budget = RetryBudget(0.0)
    budget.request()
    assert not budget.take()
