"""The steps of `upcycle train --sft`: saved once a minute, and taken again where the trainer lost them."""

import itertools
from collections.abc import Sequence
from typing import cast

import grpc
import pytest

from upcycle.cli.sft_steps import SAVE_EVERY_S, SftPlan, run_plan
from upcycle.rpc import RemoteConflict
from upcycle.train import StepResult, TrainingClient

PLAN = SftPlan("talks.jsonl", tuple((f"traj-{number}",) for number in range(5)))
STEP_S = SAVE_EVERY_S * 0.4


class Trainer:
    """Takes steps; loses the unsaved ones before the calls that `loses` numbers."""

    def __init__(self, loses: Sequence[int] = (), reason: str = "LOST_STEPS") -> None:
        self.calls: list[tuple[str, str]] = []
        self._loses, self._reason = loses, reason

    async def step(
        self, inputs: Sequence[str], *, learning_rate: float, loss_fn: str, promote: bool, persist: str
    ) -> StepResult:
        if len(self.calls) in self._loses:
            self.calls.append(("lost", ""))
            raise RemoteConflict("step", grpc.StatusCode.ABORTED, self._reason, "gone")
        self.calls.append((inputs[0], persist))
        return StepResult(
            step=1,
            version=1,
            checkpoint_id="c",
            sampler_path="",
            state_path="",
            model="m",
            metrics={},
            is_head=promote,
        )


async def trained(trainer: Trainer, numbers: list[int] | None = None) -> StepResult:
    """The last result. numbers: of the steps that were shown. Each look at the clock is STEP_S later."""
    ticks = itertools.count()
    return await run_plan(
        cast(TrainingClient, trainer),
        PLAN,
        1e-3,
        lambda number, _: (numbers if numbers is not None else []).append(number),
        clock=lambda: next(ticks) * STEP_S,
    )


async def test_a_step_is_saved_once_a_minute_and_at_the_end() -> None:
    trainer = Trainer()
    last = await trained(trainer)
    assert last.is_head
    assert [persist for _, persist in trainer.calls] == ["none", "none", "checkpoint", "none", "checkpoint"]


async def test_lost_steps_are_taken_again_after_the_last_saved_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trainer, numbers = Trainer(loses=[0, 5]), list[int]()
    await trained(trainer, numbers)
    assert numbers == [1, 2, 3, 4, 3, 4, 5]
    assert "the trainer lost steps that were not saved: it goes on with step 3\n" in capsys.readouterr().err


async def test_a_trainer_that_loses_its_steps_each_time_ends_the_command() -> None:
    trainer = Trainer(loses=range(100))
    with pytest.raises(RemoteConflict):
        await trained(trainer)
    assert len(trainer.calls) == 4


async def test_another_conflict_ends_the_command_at_once() -> None:
    trainer = Trainer(loses=[1], reason="MODEL_BUSY")
    with pytest.raises(RemoteConflict):
        await trained(trainer)
    assert [text for text, _ in trainer.calls] == ["traj-0", "lost"]
