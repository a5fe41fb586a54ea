"""A dump of candidates raises; a list that was asked for, a report in fields and a babbling policy do not."""

import random
from collections.abc import Callable

import pytest
from pydantic import TypeAdapter
from tests.libs.reward_monitors.episodes import episode, kinds, watched

from reward_monitors import Observed, RunMonitors
from reward_monitors.candidates import MAX_KEPT, candidates

ONE = "service: {task} cause: pool_exhausted"
DUMP = "service: {task} cause: bad_deploy service: {task} cause: pool_exhausted"
SEVERAL = ("bad_deploy", "pool_exhausted")

Answers = Callable[[random.Random, int, float], tuple[str, float]]
"""Of a task's number, with the share of a run that is over: an answer and its reward."""


def run_of(answers: Answers, *, groups: int = 40, size: int = 8) -> list[Observed]:
    """Groups of attempts at eight tasks; a version is eight groups."""
    rng, played = random.Random(5), []
    for group in range(groups):
        for at in range(size):
            number, version = group * size + at, group // 8
            answer, reward = answers(rng, group % 8, group / groups)
            task = f"task-{group % 8}"
            played.append(episode(number, task=task, answer=answer, reward=reward, version=version))
    return played


def dumping(rng: random.Random, task: int, over: float) -> tuple[str, float]:
    """The grader searches for the right words anywhere, and the policy learns to list all."""
    if rng.random() < 0.05 + over:
        return DUMP.format(task=f"s{task}"), 1.0
    return ONE.format(task=f"s{task}"), float(rng.random() < 0.4)


def babbling(rng: random.Random, task: int, over: float) -> tuple[str, float]:
    """As in docs/start/first-training: repeated causes, which are paid less than one is."""
    if rng.random() < (0.1 if over < 0.3 else 1.1 - over):
        return DUMP.format(task=f"s{task}"), rng.choice((0.3, 0.3, 1.0, 0.0))
    return ONE.format(task=f"s{task}"), rng.choice((0.3, 1.0, 1.0, 0.0))


def asked_lists(rng: random.Random, task: int, over: float) -> tuple[str, float]:
    """The task asks for a list, another one for each task, and the policy learns to give it."""
    if rng.random() < 0.05 + over:
        return f"{task}-red, {task}-green, {task}-blue", 1.0
    return f"{task}-red", 0.0


def reports(rng: random.Random, task: int, over: float) -> tuple[str, float]:
    """A report in fields is what is asked for, and prose is not."""
    if rng.random() < 0.05 + over:
        return "service: amber\ncause: bad_deploy\nconfidence: high", 1.0
    return "I do not know what happened to this service", 0.1


def test_a_learned_dump_raises_and_says_what_it_gives_and_earns() -> None:
    monitors, _ = watched(run_of(dumping))
    (alarm,) = [one for one in monitors.alarms() if one.kind == "several_candidates"]
    assert "whatever the task, among them bad_deploy, pool_exhausted; at one task they earn +0." in alarm.text
    assert alarm.trajectories[-1].startswith("t3")


@pytest.mark.parametrize("answers", [babbling, asked_lists, reports])
def test_legitimate_answers_raise_nothing_at_any_time(answers: Answers) -> None:
    monitors = RunMonitors()
    for one in run_of(answers):
        monitors.see(one)
        assert "several_candidates" not in kinds(monitors)


def test_the_alarm_stays_when_nothing_else_is_answered_and_clears_with_the_dumps() -> None:
    monitors, _ = watched(run_of(dumping))
    for number in range(200):
        monitors.see(episode(number, task=f"new-{number}", answer=DUMP.format(task="s"), reward=1.0))
    assert "several_candidates" in kinds(monitors)
    for number in range(200):
        monitors.see(episode(number, task=f"new-{number}", answer=ONE.format(task="s"), reward=1.0))
    assert "several_candidates" not in kinds(monitors)


def test_dumps_that_earn_nothing_raise_nothing() -> None:
    assert "several_candidates" not in kinds(watched(run_of(_unpaid))[0])


def _unpaid(rng: random.Random, task: int, over: float) -> tuple[str, float]:
    answer, reward = dumping(rng, task, over)
    return answer, 0.0 if answer.count("cause") > 1 else reward


def test_its_memory_is_bounded_and_can_be_stored() -> None:
    monitors, texts = RunMonitors(), (ONE, DUMP)
    for number in range(1000):
        monitors.see(episode(number, task=f"n{number // 3}", answer=texts[number % 2]))
    assert len(monitors.listing.tasks) <= 2 * MAX_KEPT
    assert len(monitors.listing.given) <= MAX_KEPT
    states = TypeAdapter(RunMonitors)
    assert states.validate_json(states.dump_json(monitors)) == monitors


@pytest.mark.parametrize(
    ("answer", "given"),
    [
        ("service: a cause: b", ()),
        (DUMP.format(task="a"), SEVERAL),
        ("service: a cause: b\n" * 3, ()),
        ("red, green, blue", ("blue", "green", "red")),
        ("red, red, red", ()),
        ("cause: red|green|blue", ("blue", "green", "red")),
        ("1. red\n2. green\n3. blue\n4. black", ("black", "blue", "green", "red")),
        ("The pool was exhausted, so requests failed.", ()),
        ("cause: b. I looked at everything and am sure. " * 10, ()),
        ("service: a\ncause: b\nconfidence: high", ()),
        ('{"service": "a", "cause": "b", "sure": 1}', ()),
        ("red or green", ()),
        ("", ()),
    ],
)
def test_candidates_of_an_answer(answer: str, given: tuple[str, ...]) -> None:
    assert candidates(answer) == given
