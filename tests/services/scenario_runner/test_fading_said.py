"""`why` says that rewards of the process fade, as the trainer's newest step measured."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.services.scenario_runner.test_explaining import run_facts
from tests.services.scenario_runner.test_trainer_sessions import Sessions, session

from scenario_runner.adapters.peers import PeerFacts
from scenario_runner.domain.explain import explain
from scenario_runner.domain.peer_facts import SessionFact


def test_a_run_whose_process_counts_less_says_so_and_asks_for_nothing() -> None:
    reasons, summary = explain(run_facts(session=SessionFact("waiting", "", 1.0, 2, process_weight=0.25)))
    assert [(reason.owner, reason.remedy) for reason in reasons] == [
        ("grpo_trainer", "nothing: the run's reward_schedule is fade")
    ]
    assert summary == "grpo_trainer: rewards of the process count 25% by now"
    paid, _ = explain(run_facts(session=SessionFact("waiting", "", 1.0, 2)))
    assert not any("rewards" in reason.what for reason in paid)


@pytest.mark.parametrize(("metrics", "weight"), [({"process_weight": 0.5}, 0.5), ({"loss": 1.0}, 1.0)])
async def test_the_weight_is_that_of_the_newest_step(metrics: dict[str, float], weight: float) -> None:
    known = session("run-2", "WAITING", step=7)
    known.last_metrics.values.update(metrics)
    peers = object.__new__(PeerFacts)
    peers._training = cast(Any, Sessions(known))
    found = await peers.session("run-2")
    assert found is not None
    assert found.process_weight == weight
