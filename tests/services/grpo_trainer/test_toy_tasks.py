"""The tasks that learning is proven on: any bytes of a policy are played, and only the right ones pay."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.services.grpo_trainer.toy_tasks import TASKS

bytes_of_a_policy = st.binary(min_size=1, max_size=6).map(lambda raw: raw.decode("latin1"))
lines = st.one_of(bytes_of_a_policy, bytes_of_a_policy.map(lambda text: f"{text[:-1]}\n"))


@pytest.mark.parametrize("name", sorted(TASKS))
@given(seed=st.integers(0, 1 << 30), said=st.lists(lines, min_size=10, max_size=12))
def test_any_line_is_answered_and_every_episode_ends(name: str, seed: int, said: list[str]) -> None:
    task = TASKS[name](seed)
    for line in said:
        if task.done:
            break
        task.step(line)
    assert task.done
    assert task.reward in (0.0, 1.0)


@pytest.mark.parametrize("name", sorted(TASKS))
@pytest.mark.parametrize("digit", ["²", "³", "¹"])
def test_superscripts_are_digits_to_python_and_not_to_a_task(name: str, digit: str) -> None:
    assert digit.isdigit()
    for line in (f"A{digit}\n", f"G{digit}\n", f"={digit}\n", f"A{digit}{digit}\n"):
        task = TASKS[name](3)
        task.step(line)
        assert task.reward == 0.0


@pytest.mark.parametrize("name", sorted(TASKS))
def test_demonstrations_are_mostly_wrong_and_sometimes_right(name: str) -> None:
    rng, solved = random.Random(0), 0
    for seed in range(400):
        task = TASKS[name](seed)
        for line in task.demo(rng):
            task.step(line)
        solved += task.reward > 0
    assert 0.05 < solved / 400 < 0.6
