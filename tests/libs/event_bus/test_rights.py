"""Who may publish what; the server holds services to it (`tests/attacks/test_bus_identities.py`)."""

import json

import pytest

from event_bus import UnknownEvent
from event_bus.accounts import STREAMS_ACCOUNT, accounts_config
from event_bus.rights import IDENTITIES, SERVICES, durables_of, rights_of, service_of
from event_bus.topology import OWNERS, UPCYCLE

M = "incident"
MAY: dict[str, set[str]] = {
    f"up.default.decision.outcome.{M}.e1.graded": {"reward_grader"},
    f"up.default.decision.outcome.{M}.e1.failed": {"reward_grader", "rollout_sampler", "scenario_runner"},
    f"up.default.decision.settled.{M}.g1.trainer": {"grpo_trainer"},
    f"up.default.decision.settled.{M}.g1.planner": {"scenario_runner"},
    f"up.default.decision.step.{M}.s1.trainer": {"grpo_trainer"},
    # What was decided is copied there by the server.
    f"up.default.evt.trajectory.graded.{M}": set(),
    f"up.default.evt.episode.failed.{M}": set(),
    f"up.default.evt.group.settled.{M}": set(),
    f"up.default.evt.step.completed.{M}": set(),
    f"up.default.evt.checkpoint.promoted.{M}": {"checkpoint_registry"},
    f"up.default.evt.checkpoint.rolled_back.{M}": {"checkpoint_registry"},
    f"up.default.evt.trajectory.recorded.{M}": {"model_gateway", "rollout_sampler"},
    f"up.default.evt.policy.published.{M}": {"grpo_trainer"},
    f"up.default.evt.run.submitted.{M}": {"scenario_runner"},
    f"up.default.evt.run.stopping.{M}": {"scenario_runner"},
    f"up.default.evt.engine.ready.{M}": {"policy_engine"},
    f"up.default.task.episode.train.{M}": {"scenario_runner"},
    f"up.default.task.episode.eval.{M}": {"scenario_runner"},
    f"up.default.again.EVENTS.default_reward-grader.up.default.evt.trajectory.recorded.{M}": set(),
    "up.default.handled.1": set(),
    "up.default.attempt.default_reward-grader.EVENTS.7": {"reward_grader"},
    "up.default.attempt.default_scenario-runner_plan.EVENTS.place": {"scenario_runner"},
    "up.default.attempt.replay-grpo_trainer.EVENTS.place": {"grpo_trainer"},
    "up.default.attempt.replay-policy_engine-head.EVENTS.place": {"policy_engine"},
    f"up.default.attempt.default_rollout-sampler_train_{M}.TASKS.7": {"rollout_sampler"},
    "up.default.dlq.gap.default_trajectory-store_ledger.EVENTS": {"trajectory_store"},
    f"up.default.dlq.up.default.task.episode.train.{M}": {"rollout_sampler"},
}


@pytest.mark.parametrize("subject", MAY)
def test_who_may_publish(subject: str) -> None:
    assert {name for name in SERVICES if rights_of(name).may_publish(subject)} == MAY[subject]


def test_every_publisher_of_the_topology_is_a_service_with_a_key() -> None:
    assert {name for owners in OWNERS.values() for name in owners} <= set(SERVICES)


def test_every_durable_has_one_service() -> None:
    found = [spec for name in SERVICES for spec in durables_of(name)]
    assert sorted(spec.durable for spec in found) == sorted(
        spec.durable for spec in (*UPCYCLE.consumers, *UPCYCLE.queues)
    )


def test_a_process_is_known_by_the_name_with_which_it_connects() -> None:
    assert service_of("policy_engine-latest") == "policy_engine"
    assert service_of("grpo_trainer") == "grpo_trainer"
    assert service_of("upcycle doctor") is None


def test_a_name_that_is_no_service_has_no_rights() -> None:
    with pytest.raises(UnknownEvent, match="'operator' is no service of the platform: checkpoint_registry"):
        rights_of("operator")


def test_no_right_of_a_service_makes_changes_or_removes_anything() -> None:
    asked = {
        tuple(one.split(".")[2:4])
        for name in SERVICES
        for one in (*rights_of(name).asks, *rights_of(name).pulls)
        if one.startswith("$JS.API.")
    }
    assert asked == {
        ("STREAM", "INFO"), ("STREAM", "MSG"), ("CONSUMER", "INFO"), ("CONSUMER", "MSG"), ("DIRECT", "GET"),
    }  # fmt: skip


def test_the_account_of_a_service_has_no_streams_and_one_user() -> None:
    accounts = json.loads("{" + accounts_config({name: f"U{name}" for name in IDENTITIES}).replace(
        "accounts", '"accounts"', 1) + "}")["accounts"]  # fmt: skip

    assert set(accounts) == {STREAMS_ACCOUNT, *SERVICES}
    for name in SERVICES:
        assert "jetstream" not in accounts[name]
        assert "exports" not in accounts[name]
        assert [user["nkey"] for user in accounts[name]["users"]] == [f"U{name}"]
    assert [user["nkey"] for user in accounts[STREAMS_ACCOUNT]["users"]] == ["Uprovision", "Uoperator"]
