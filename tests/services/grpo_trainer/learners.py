"""Learners on one rank and on several, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file
from tests.services.grpo_trainer.batches import rollouts
from torch import Tensor

from grpo_trainer.domain.spec import TrainingSpec, training_spec
from grpo_trainer.learner.packed_model import ModelOptions
from grpo_trainer.learner.torch_learner import LearnerOptions, LearnerThread, TorchLearner

DEADLINE_S = 60.0


def spec(**other: object) -> TrainingSpec:
    given = {"learning_rate": 2e-3, **other}
    return training_spec(run_id="run-0000000000ab", model="tiny", group_size=4, **given)


def options(
    ranks: int, *, deadline_s: float = DEADLINE_S, model: ModelOptions | None = None
) -> LearnerOptions:
    """Microbatches so small that ranks have several, and unequally many."""
    return LearnerOptions(
        num_threads=1,
        microbatch_tokens=40,
        ranks=ranks,
        rank_deadline_s=deadline_s,
        model=model or ModelOptions(),
    )


@contextmanager
def thread_of(given: LearnerOptions) -> Iterator[LearnerThread]:
    thread = LearnerThread(given)
    try:
        yield thread
    finally:
        thread.close()


@asynccontextmanager
async def begun(thread: LearnerThread, base: Path, of: TrainingSpec) -> AsyncIterator[TorchLearner]:
    learner = TorchLearner(thread)
    await learner.begin(of, base)
    try:
        yield learner
    finally:
        await learner.close()


async def weights(learner: TorchLearner, folder: Path) -> dict[str, Tensor]:
    """What the learner would publish."""
    await (await learner.snapshot()).export(folder)
    return load_file(folder / "model.safetensors")


async def after_steps(
    thread: LearnerThread, base: Path, of: TrainingSpec, *, seeds: Iterable[int], folder: Path
) -> dict[str, Tensor]:
    """What a fresh learner would publish after one step on `rollouts(seed)` per seed."""
    async with begun(thread, base, of) as learner:
        for seed in seeds:
            await learner.step(rollouts(seed))
        return await weights(learner, folder)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """To the last bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)
