"""Concentration of answers, and which component brought the gain."""

import json

import pydantic
from tests.libs.reward_monitors.episodes import episode, kinds, paid, success, watched

from reward_monitors import Component, RunMonitors
from reward_monitors.answers import WINDOW
from reward_monitors.drift import MAX_VERSIONS


def test_one_answer_for_most_tasks_raises_with_its_share() -> None:
    begun = [episode(number) for number in range(96)]
    constant = [success(96 + number, answer="yes") for number in range(192)]
    monitors, _ = watched(begun + constant)
    (alarm,) = monitors.alarms()
    assert alarm.kind.value == "answer_concentration"
    assert alarm.value == 1.0
    assert "'yes'" in alarm.text
    assert alarm.trajectories == tuple(f"t{number}" for number in range(280, 288))


def test_an_answer_that_was_usual_from_the_start_raises_nothing() -> None:
    answers = [success(number, answer="yes" if number % 10 < 6 else f"no {number}") for number in range(600)]
    assert kinds(watched(answers)[0]) == []


def test_many_attempts_at_one_task_are_one_task() -> None:
    tasks = [
        success(number, task=f"task-{number // 32}", answer=f"answer {number // 32}") for number in range(640)
    ]
    assert kinds(watched(tasks)[0]) == []


def test_a_frequent_answer_that_pays_less_than_others_is_no_hack() -> None:
    begun = [success(number) for number in range(96)]
    gave_up = [(episode(n, answer="no idea") if n % 4 else success(n)) for n in range(96, 400)]
    assert kinds(watched(begun + gave_up)[0]) == []


def test_a_component_that_rises_without_success_is_named() -> None:
    begun = [episode(n, reward=0.0, components=paid(right=0.0, brief=0.0)) for n in range(96)]
    rising = [episode(n, reward=0.5, components=paid(right=0.0, brief=1.0)) for n in range(96, 208)]
    monitors, _ = watched(begun + rising)
    (alarm,) = monitors.alarms()
    assert alarm.kind.value == "component_drift"
    assert "'brief' brought +0.500" in alarm.text
    assert alarm.trajectories == tuple(f"t{number}" for number in range(200, 208))


def test_learning_raises_nothing_however_much_the_reward_rises() -> None:
    begun = [episode(n, components=paid(right=0.0, brief=0.0)) for n in range(96)]
    learned = [success(n, components=paid(right=1.0, brief=1.0)) for n in range(96, 400)]
    assert kinds(watched(begun + learned)[0]) == []


def test_partial_credit_that_comes_before_success_raises_nothing() -> None:
    """The service is found in all, the cause in one of eight: success depends on the service."""

    def one(number: int, knows: bool) -> object:
        solved = knows and number % 8 == 0
        parts = paid(service=float(knows), cause=float(solved))
        reward = sum(part.paid for part in parts.values())
        return (success if solved else episode)(number, reward=reward, components=parts)

    begun = [one(number, number % 4 == 0) for number in range(96)]
    later = [one(number, number % 8 < 6) for number in range(96, 400)]
    monitors = RunMonitors()
    for each in begun + later:
        monitors.see(each)  # type: ignore[arg-type]
    assert kinds(monitors) == []


def test_a_reward_without_a_tree_is_watched_as_a_whole() -> None:
    begun = [episode(number) for number in range(96)]
    rising = [episode(number, reward=0.4) for number in range(96, 208)]
    assert "'reward' brought +0.400" in watched(begun + rising)[0].alarms()[0].text


def test_the_shadow_decides_what_success_is() -> None:
    parts = {"judge": Component(0.5, 1.0)}
    begun = [episode(number, shadow=False) for number in range(96)]
    rising = [success(n, shadow=False, reward=0.5, components=parts) for n in range(96, 208)]
    assert "component_drift" in kinds(watched(begun + rising)[0])


def test_memory_is_bounded_and_a_stored_state_goes_on_equally() -> None:
    adapter = pydantic.TypeAdapter(RunMonitors)
    monitors = RunMonitors()
    sizes = []
    for number in range(6000):
        kind = f"kind-{number % 40}" if number % 7 == 0 else ""
        monitors.see(episode(number, failure=kind, changed=(f"key-{number}",), components=paid(a=0.5)))
        if number in (3000, 5999):
            sizes.append(len(adapter.dump_json(monitors)))
    assert sizes[1] < 1.2 * sizes[0] < 200_000
    assert len(monitors.answers.kept) == WINDOW
    assert len(monitors.drift.versions) == MAX_VERSIONS
    stored = {**json.loads(adapter.dump_json(monitors)), "num_seen": 6000}  # of an older state
    restored = adapter.validate_json(json.dumps(stored))
    for number in range(6000, 6200):
        one = success(number, shadow=False)
        assert monitors.see(one) == restored.see(one)
    assert restored.alarms() == monitors.alarms()
    assert restored.alarms()
    json.loads(adapter.dump_json(restored))
