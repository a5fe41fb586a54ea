"""Alarms: when they are raised, that they clear, and that a restart forgets none of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from grpo_trainer.app import alarm_limits
from grpo_trainer.domain.alarms import DEFAULT_LIMITS, AlarmKind, AlarmLimits, alarms_of, watched
from grpo_trainer.settings import GrpoTrainerSettings
from service_kit.settings import SettingsError, load_settings


def fold(
    name: str, values: Sequence[float], *, pace: int = 5, limits: AlarmLimits = DEFAULT_LIMITS
) -> list[dict[str, float]]:
    """The completed metrics of each step; only what the step before recorded is handed on."""
    steps: list[dict[str, float]] = []
    for number, value in enumerate(values, start=1):
        before = steps[-1] if steps else {}
        now = {name: value}
        steps.append(now | watched(before, now, step=number, pace=pace, limits=limits))
    return steps


def kinds(steps: Sequence[dict[str, float]], limits: AlarmLimits = DEFAULT_LIMITS) -> list[set[AlarmKind]]:
    return [{alarm.kind for alarm in alarms_of(step, limits)} for step in steps]


def test_mismatch_is_an_alarm_after_eight_updates_above_the_limit_and_clears_with_the_first_below() -> None:
    steps = fold("mismatch_kl", [0.11] * 9 + [0.1, 0.2])
    raised = {AlarmKind.MISMATCH_KL}
    assert kinds(steps) == [set()] * 7 + [raised, raised, set(), set()]
    (alarm,) = alarms_of(steps[8])
    assert (alarm.value, alarm.limit, alarm.since_step) == (0.11, 0.1, 8)
    assert "for 9 updates" in alarm.text


def test_a_single_good_update_begins_the_count_anew() -> None:
    steps = fold("mismatch_kl", [0.5] * 7 + [0.05] + [0.5] * 7)
    assert not any(kinds(steps))
    assert kinds(fold("mismatch_kl", [0.5] * 7 + [0.05] + [0.5] * 8))[-1] == {AlarmKind.MISMATCH_KL}


def test_no_mismatch_is_ever_measured_as_nan_and_counted() -> None:
    assert not any(kinds(fold("mismatch_kl", [float("nan")] * 10)))


def test_decisions_with_a_twentieth_of_their_first_entropy_are_a_collapse_at_any_step() -> None:
    steps = fold("decision_entropy", [2.0] + [1.0] * 30 + [0.09] * 9)
    assert kinds(steps) == [set()] * 38 + [{AlarmKind.ENTROPY_COLLAPSE}] * 2
    (alarm,) = alarms_of(steps[-1])
    assert (alarm.value, alarm.since_step) == (0.09, 39)
    assert alarm.limit == pytest.approx(0.1)
    assert not kinds(fold("decision_entropy", [2.0] + [0.09] * 8 + [0.11]))[-1]


def test_a_policy_that_was_certain_of_most_tokens_from_the_start_is_no_collapse() -> None:
    """As the demo's last steps: 0.02 nats a token, of which a fifth of the tokens holds nearly all."""
    assert not any(kinds(fold("decision_entropy", [0.4] + [0.021] * 20)))


def test_turns_that_could_not_be_read_are_averaged_over_eight_updates() -> None:
    assert not any(kinds(fold("unreadable_fraction", [0.5] + [0.0] * 7)))
    steps = fold("unreadable_fraction", [0.11] * 8)
    assert kinds(steps) == [set()] * 7 + [{AlarmKind.UNREADABLE}]
    (alarm,) = alarms_of(steps[-1])
    assert alarm.value == pytest.approx(0.11)
    assert "11.0% of the turns could not be read" in alarm.text


def test_what_is_twice_as_old_as_the_pace_says_that_an_engine_does_not_follow() -> None:
    assert not any(kinds(fold("staleness_mean", [10.0] * 9, pace=5)))
    steps = fold("staleness_mean", [10.1] * 9, pace=5)
    assert kinds(steps) == [set()] * 7 + [{AlarmKind.AGE}] * 2
    assert alarms_of(steps[-1])[0].limit == 10.0
    assert not kinds(fold("staleness_mean", [10.1] * 9 + [9.0], pace=5))[-1]


def test_trajectories_without_an_end_are_averaged_over_eight_updates() -> None:
    # One of 16 in one update of eight: 0.78 %, no alarm. One of 16 in each: 6.25 %.
    assert not any(kinds(fold("no_eos_fraction", [1 / 16] + [0.0] * 7)))
    steps = fold("no_eos_fraction", [1 / 16] * 8)
    assert kinds(steps) == [set()] * 7 + [{AlarmKind.NO_EOS}]
    assert steps[-1]["no_eos_mean"] == pytest.approx(1 / 16)
    # (7/8)^2 of 6.25 % is 4.8 %: two clean updates clear it.
    after = fold("no_eos_fraction", [1 / 16] * 8 + [0.0, 0.0])
    assert kinds(after)[-2:] == [{AlarmKind.NO_EOS}, set()]


def test_an_alarm_keeps_the_step_at_which_it_was_raised() -> None:
    steps = fold("mismatch_kl", [0.2] * 12)
    assert [alarm.since_step for step in steps for alarm in alarms_of(step)] == [8] * 5


def test_the_limits_are_settings_whose_defaults_are_those_of_the_domain() -> None:
    keys = {"UPCYCLE_ACCESS_OPEN": "true"}
    assert alarm_limits(load_settings(GrpoTrainerSettings, environ=keys)) == DEFAULT_LIMITS
    environ = {
        **keys,
        "GRPO_TRAINER_ALARM_UPDATES": "2",
        "GRPO_TRAINER_ALARM_MISMATCH_KL": "0.5",
        "GRPO_TRAINER_ALARM_ENTROPY_SHARE": "0.3",
        "GRPO_TRAINER_ALARM_NO_EOS": "0.25",
        "GRPO_TRAINER_ALARM_UNREADABLE": "0.3",
        "GRPO_TRAINER_ALARM_AGE": "3",
    }
    chosen = alarm_limits(load_settings(GrpoTrainerSettings, environ=environ))
    assert chosen == AlarmLimits(2, 0.5, 0.3, 0.25, 0.3, 3.0)
    assert kinds(fold("mismatch_kl", [0.4, 0.6, 0.6], limits=chosen), chosen)[1:] == [
        set(),
        {AlarmKind.MISMATCH_KL},
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("UPDATES", "0"),
        ("MISMATCH_KL", "0"),
        ("MISMATCH_KL", "nan"),
        ("ENTROPY_SHARE", "1.5"),
        ("NO_EOS", "-1"),
        ("UNREADABLE", "1.1"),
        ("AGE", "0.5"),
    ],
)
def test_limits_that_cannot_be_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"GRPO_TRAINER_ALARM_{name}"):
        load_settings(GrpoTrainerSettings, environ={f"GRPO_TRAINER_ALARM_{name}": value})


def test_a_restart_with_wider_limits_does_not_show_what_they_would_not_raise() -> None:
    last = fold("mismatch_kl", [0.2] * 9)[-1]
    assert {alarm.kind for alarm in alarms_of(last)} == {AlarmKind.MISMATCH_KL}
    assert not alarms_of(last, AlarmLimits(mismatch_kl=0.3))
    low = fold("decision_entropy", [2.0] + [0.09] * 9)[-1]
    assert alarms_of(low)
    assert not alarms_of(low, AlarmLimits(entropy_share=0.01))
    cut = fold("no_eos_fraction", [0.1] * 9)[-1]
    assert alarms_of(cut)
    assert not alarms_of(cut, AlarmLimits(no_eos=0.2))
