"""A batch that does not fit in memory is computed in smaller pieces, with the same gradient; what does not
fit at all ends its run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.services.grpo_trainer.batches import policy, rollouts
from tests.services.grpo_trainer.bench import MIXED, MODEL, RUN, Episodes, Trainer, World, submission
from tests.services.grpo_trainer.learners import begun, distance, spec, thread_of, weights
from torch import Tensor

from grpo_math.packing import Microbatch
from grpo_trainer.domain.errors import OutOfMemory
from grpo_trainer.learner import packed_model
from grpo_trainer.learner.core import step_options
from grpo_trainer.learner.memory import is_out_of_memory
from grpo_trainer.learner.optimization import optimize
from grpo_trainer.learner.packed_model import load_model
from grpo_trainer.learner.rows import Credit, batch_rows
from grpo_trainer.learner.torch_learner import LearnerOptions, TorchLearner

WHOLE = LearnerOptions(num_threads=1, microbatch_tokens=8192)
ERRORS: list[Callable[[], Exception]] = [
    lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    lambda: MemoryError(),
    lambda: RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
]


@contextmanager
def room_for(
    tokens: int, monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception], *, late: bool = False
) -> Iterator[list[int]]:
    """The real model, on a machine that has room for a pass of so many unique tokens. late: the backward of
    a pass fails, and not its forward. Gives the sizes of all passes."""
    forward, sizes = packed_model.PackedModel.logprobs, list[int]()

    def limited(self: Any, batch: Microbatch, *, exact: bool = False) -> tuple[Tensor, Tensor]:
        if not torch.is_grad_enabled():
            return forward(self, batch, exact=exact)
        sizes.append(batch.num_unique_tokens)
        if batch.num_unique_tokens <= tokens:
            return forward(self, batch)
        if not late:
            raise error()
        logprobs, entropies = forward(self, batch)

        def fail(_: Tensor) -> None:
            raise error()

        logprobs.register_hook(fail)  # type: ignore[no-untyped-call]
        return logprobs, entropies

    monkeypatch.setattr(packed_model.PackedModel, "logprobs", limited)
    yield sizes
    monkeypatch.undo()


async def stepped(base: Path, folder: Path) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Weights after two steps, and the metrics of the second."""
    with thread_of(WHOLE) as thread:
        async with begun(thread, base, spec()) as learner:
            await learner.step(rollouts(1))
            numbers = await learner.step(rollouts(2))
            return await weights(learner, folder), dict(numbers.values)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("error", ERRORS)
async def test_a_batch_that_does_not_fit_is_split_and_learns_the_same(
    error: Callable[[], Exception], late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = policy(tmp_path / "base")
    whole, measured = await stepped(base, tmp_path / "whole")
    assert measured["oom_splits"] == 0.0
    with room_for(100, monkeypatch, error, late=late) as sizes:
        split, again = await stepped(base, tmp_path / "split")
    assert again["oom_splits"] >= 1.0
    assert max(sizes) > 100 >= min(sizes)
    assert distance(whole, split) <= 1e-5  # Adam's first steps magnify what is rounded differently
    assert abs(measured["grad_norm"] - again["grad_norm"]) <= 1e-6
    assert abs(measured["loss"] - again["loss"]) <= 1e-6


def test_the_gradient_of_a_split_batch_is_that_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(policy(tmp_path / "base"), device="cpu")
    optimizer = torch.optim.SGD(model.module.parameters(), lr=0.0)
    rows = batch_rows(rollouts(2), credit=Credit("dr_grpo"), group_size=4).rows
    options = replace(step_options(spec(), WHOLE), max_grad_norm=math.inf)

    def gradients() -> tuple[dict[str, Tensor], float]:
        found: dict[str, Tensor] = {}

        def keep(*_: object) -> None:
            parameters = model.module.named_parameters()
            found.update({name: p.grad.clone() for name, p in parameters if p.grad is not None})

        handle = optimizer.register_step_pre_hook(keep)
        measured = optimize(model, optimizer, rows, options, max_row_tokens=0)
        handle.remove()
        assert measured is not None
        return found, measured["oom_splits"]

    whole, none = gradients()
    with room_for(100, monkeypatch, ERRORS[0], late=True):
        split, several = gradients()
    assert (none, several >= 1) == (0, True)
    assert max(float(gradient.abs().max()) for gradient in whole.values()) > 1e-3
    assert distance(whole, split) <= 1e-6


async def test_where_no_single_row_fits_the_weights_stay_and_the_text_says_what_may_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = policy(tmp_path / "base")
    with thread_of(WHOLE) as thread:
        async with begun(thread, base, spec()) as learner:
            await learner.step(rollouts(1))
            before = await weights(learner, tmp_path / "before")
            with room_for(3, monkeypatch, ERRORS[0]) as sizes, pytest.raises(OutOfMemory) as raised:
                await learner.step(rollouts(2))
            after = await weights(learner, tmp_path / "after")
            rows = max(len(one.rows[0].token_ids) for g in rollouts(2) for one in g.rollouts)
    assert distance(before, after) == 0.0
    assert len(sizes) >= 3  # whole, halved, ..., one row
    for word in ("one at a time", f"longest has {rows} tokens", "GRADIENT_CHECKPOINTING", "--lora-rank"):
        assert word in str(raised.value)


async def test_other_errors_are_not_taken_for_a_lack_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with thread_of(WHOLE) as thread:
        async with begun(thread, policy(tmp_path / "base"), spec()) as learner:
            wrong = room_for(100, monkeypatch, lambda: RuntimeError("shape mismatch"))
            with wrong as sizes, pytest.raises(RuntimeError, match="shape mismatch"):
                await learner.step(rollouts(1))
            assert len(sizes) == 1


def test_torch_errors_of_failed_allocations_are_recognised() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 46)
    assert is_out_of_memory(raised.value)


@pytest.mark.parametrize("method", ["begin", "step", "snapshot"])
async def test_every_call_of_the_learner_reports_out_of_memory(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = policy(tmp_path / "base")
    with thread_of(WHOLE) as thread:
        learner = TorchLearner(thread)
        if method != "begin":
            await learner.begin(spec(), base)

        def fail(*_: Any, **__: Any) -> None:
            raise MemoryError

        names = {"begin": "core.load_model", "step": "commands.optimize", "snapshot": "core.host_copy"}
        monkeypatch.setattr(f"grpo_trainer.learner.{names[method]}", fail)
        calls = {
            "begin": lambda: learner.begin(spec(), base),
            "step": lambda: learner.step(rollouts(1)),
            "snapshot": learner.snapshot,
        }
        with pytest.raises(OutOfMemory, match="does not fit in memory"):
            await calls[method]()
        await learner.close()


async def test_a_batch_that_never_fits_ends_its_run_and_a_smaller_one_of_another_run_trains(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.publish_base(model="other", seed=4)
    world.stream.append(submission(prompts_per_step=1))
    await Episodes(world).group(0, MIXED)
    with room_for(3, monkeypatch, ERRORS[2]):
        async with Trainer(world):
            fact = await world.published(f"session.failed/{RUN}")
    assert (fact.kind, fact.model, fact.step) == ("out_of_memory", MODEL, 0)
    assert "fewer tokens" in fact.detail
    assert "smaller prompts_per_step does not help" in fact.detail
    world.stream.append(submission(run_id="run-2", model="other", steps=1, prompts_per_step=1))
    await Episodes(world, run_id="run-2").group(0, MIXED)
    async with Trainer(world):
        step = await world.published("step.completed/run-2/1")
    assert step.metrics.values["oom_splits"] == 0.0
