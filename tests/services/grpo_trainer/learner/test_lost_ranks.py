"""Ranks with other settings, and ranks that are lost: each test has a process group of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.services.grpo_trainer.batches import policy, rollouts
from tests.services.grpo_trainer.learners import DEADLINE_S, after_steps, distance, options, spec, thread_of

from grpo_trainer.domain.errors import InvalidTrainingSpec, LostRank, RanksGone
from grpo_trainer.learner.packed_model import ModelOptions
from grpo_trainer.learner.torch_learner import TorchLearner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def lost_ranks_are_killed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that hangs does not end when its socket is closed."""
    monkeypatch.setattr("grpo_trainer.learner.rank_group._EXIT_S", 1.0)


WAYS = [
    pytest.param(ModelOptions(gradient_checkpointing=True), 1e-6, marks=pytest.mark.study),
    (ModelOptions(gradient_checkpointing=True, precision="bf16"), 1e-3),
]


@pytest.mark.parametrize(("model", "rounding"), WAYS)
async def test_other_ways_to_compute_on_two_ranks(
    model: ModelOptions, rounding: float, tmp_path: Path
) -> None:
    base = policy(tmp_path / "base")
    found = []
    for ranks in (1, 2):
        with thread_of(options(ranks, model=model)) as thread:
            folder = tmp_path / str(ranks)
            found.append(await after_steps(thread, base, spec(), seeds=[1], folder=folder))
    assert distance(*found) <= rounding


@pytest.mark.parametrize(
    ("number", "deadline_s", "groups"),
    [
        (signal.SIGKILL, DEADLINE_S, 3),
        pytest.param(signal.SIGSTOP, 4.0, 3, marks=pytest.mark.study),
        pytest.param(signal.SIGSTOP, 8.0, 400, marks=pytest.mark.study),
    ],
)
async def test_a_lost_rank_fails_the_step(
    number: signal.Signals, deadline_s: float, groups: int, tmp_path: Path
) -> None:
    """400 groups: the command is larger than the socket's buffer, so it is not even sent."""
    base = policy(tmp_path / "base")
    with thread_of(options(2, deadline_s=deadline_s)) as thread:
        learner = TorchLearner(thread)
        await learner.begin(spec(), base)
        [child] = thread.group.children
        os.kill(child, number)
        with pytest.raises(LostRank, match="all 2 ranks"):
            await learner.step(rollouts(1, groups=groups))
        with pytest.raises(LostRank):
            await learner.snapshot()
        await learner.close()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


async def test_a_rank_without_memory_is_a_lost_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait inside a collective, so nothing can be split: the process ends."""
    with thread_of(options(2)) as thread:
        learner = TorchLearner(thread)
        await learner.begin(spec(), policy(tmp_path / "base"))

        def fail(*_: object, **__: object) -> None:
            raise MemoryError("no room")

        monkeypatch.setattr("grpo_trainer.learner.optimization.accumulate", fail)
        with pytest.raises(LostRank, match="no room"):
            await learner.step(rollouts(1))
        with pytest.raises(RanksGone):
            await learner.step(rollouts(1))
        await learner.close()


async def test_ranks_and_compiled_layers_are_refused_together() -> None:
    with pytest.raises(InvalidTrainingSpec, match="compiled"):
        options(2, model=ModelOptions(compiled=True))
