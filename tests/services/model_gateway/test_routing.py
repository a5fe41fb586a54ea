"""Which engine takes a request, and how promotions are timed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from engine_client import EngineState
from model_gateway.domain.calls import ModelTarget
from model_gateway.domain.routing import (
    EngineRoute,
    ModelHead,
    Promotion,
    RoutingView,
    ServedWeights,
    choose,
    served_name,
)
from model_gateway.usecases.promotions import Promotions

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def engine(name: str = "e", **changes: Any) -> EngineRoute:
    values: dict[str, Any] = {
        "engine_id": name,
        "base_url": "http://127.0.0.1:1",
        "model": "incident",
        "follows_head": True,
        "version": 3,
        "digest": "d",
        "held_versions": frozenset(),
        "state": EngineState.READY,
        "renewal": "1",
    }
    return EngineRoute(**(values | changes))


def pick(
    *engines: EngineRoute, busy: dict[str, int] | None = None, suspects: tuple[str, ...] = ()
) -> str | None:
    found = choose(engines, head_version=3, busy=busy or {}, suspects=suspects)
    return found.engine_id if found else None


def test_head_before_reload_before_load_before_name() -> None:
    old, reloading = engine("a", version=2), engine("b", state=EngineState.RELOADING)
    idle, busy = engine("d"), engine("c")
    assert pick(old, reloading, busy, idle, busy={"c": 2}) == "d"
    assert pick(old, reloading, busy, busy={"c": 2}) == "c"
    assert pick(old, reloading) == "b"
    assert pick(old) == "a"
    assert pick(idle, busy) == "c"


def test_suspects_are_left_out_altogether() -> None:
    assert pick(engine("a"), engine("b"), suspects=("a",)) == "b"
    assert pick(engine("a"), suspects=("a",)) is None


@pytest.mark.parametrize("state", [EngineState.STARTING, EngineState.STOPPING])
def test_engines_that_start_or_stop_take_nothing(state: EngineState) -> None:
    assert RoutingView(engines=(engine(state=state),)).serving(ModelTarget("incident")) == []


def test_a_failed_reload_still_serves() -> None:
    assert len(RoutingView(engines=(engine(state=EngineState.FAILED),)).serving(ModelTarget("incident"))) == 1


def test_an_engine_serves_a_version_only_under_a_name_that_holds_it() -> None:
    holder = engine(held_versions=frozenset({1}))
    assert served_name(holder, ModelTarget("incident")) == "incident"
    assert served_name(holder, ModelTarget("incident", 1)) == "incident@v1"
    assert served_name(holder, ModelTarget("incident", 3)) == "incident"
    assert served_name(holder, ModelTarget("incident", 2)) is None
    rollout = engine(follows_head=False)
    assert served_name(rollout, ModelTarget("incident")) is None
    # A version that is about to be replaced cannot be promised.
    assert served_name(engine(state=EngineState.RELOADING), ModelTarget("incident", 3)) is None


def test_a_lease_is_certain_while_no_reload_is_due() -> None:
    head = ModelHead("incident", 3, "ckpt-incident-v00000003", 0)
    view = RoutingView({"incident": head})
    assert view.is_settled(engine())
    assert not view.is_settled(engine(version=2))
    assert not view.is_settled(engine(state=EngineState.RELOADING))
    assert view.is_settled(engine(version=9, follows_head=False))


def promotions(seconds_later: float) -> Promotions:
    return Promotions(now=lambda: NOW + timedelta(seconds=seconds_later))


def test_the_first_token_of_the_promoted_version_counts_once() -> None:
    timed = promotions(0.4)
    timed.moved(Promotion("incident", 4, "d", NOW))
    timed.token(ServedWeights("incident", 3, 3, ""))
    assert timed.served("incident") == []
    timed.token(ServedWeights("incident", 4, 4, ""))
    timed.token(ServedWeights("incident", 4, 4, ""))
    (served,) = timed.served("incident")
    assert served.first_token_s == pytest.approx(0.4)


def test_a_promotion_that_was_overtaken_is_never_served() -> None:
    timed = promotions(1.0)
    timed.moved(Promotion("incident", 4, "d", NOW))
    timed.moved(Promotion("incident", 5, "d", NOW))
    timed.token(ServedWeights("incident", 4, 4, ""))
    assert timed.served("incident") == []
    timed.token(ServedWeights("incident", 5, 5, ""))
    assert [one.version for one in timed.served("incident")] == [5]


def test_a_promotion_that_reached_an_engine_first_counts_from_its_first_token() -> None:
    now = [NOW + timedelta(seconds=0.3)]
    timed = Promotions(now=lambda: now[0])
    timed.token(ServedWeights("incident", 4, 4, ""))
    now[0] = NOW + timedelta(seconds=7)
    timed.moved(Promotion("incident", 4, "d", NOW))
    (served,) = timed.served("incident")
    assert served.first_token_s == pytest.approx(0.3)
    timed.token(ServedWeights("incident", 4, 4, ""))
    assert len(timed.served("incident")) == 1


def test_tokens_of_a_version_before_its_promotion_are_not_the_first_after_it() -> None:
    now = [NOW - timedelta(seconds=5)]
    timed = Promotions(now=lambda: now[0])
    timed.token(ServedWeights("incident", 4, 4, ""))
    timed.moved(Promotion("incident", 4, "d", NOW))
    assert timed.served("incident") == []
    now[0] = NOW + timedelta(seconds=0.2)
    timed.token(ServedWeights("incident", 4, 4, ""))
    assert [one.first_token_s for one in timed.served("incident")] == [pytest.approx(0.2)]


def test_a_promotion_that_arrives_twice_counts_once() -> None:
    timed = promotions(0.4)
    for version in (4, 5):
        for _ in range(2):  # from its fact, and from the registry's list
            timed.moved(Promotion("incident", version, "d", NOW))
        timed.token(ServedWeights("incident", version, version, ""))
        timed.moved(Promotion("incident", 4, "d", NOW))
    assert [one.version for one in timed.served("incident")] == [4, 5]
