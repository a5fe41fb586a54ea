"""The learning rate over a run's steps: torch's own scheduler, whose state travels with the optimizer's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from grpo_trainer.domain.errors import BrokenArtifact
from grpo_trainer.domain.schedules import Schedule

_STATE: Final = "state"


class RateSchedule:
    """Sets the rate of an optimizer's groups for the next step of a run."""

    def __init__(self, optimizer: Optimizer, schedule: Schedule) -> None:
        """optimizer: fresh, with the full rate in its groups; it gets that of the first step."""

        def factor(done: int) -> float:  # a plain function: torch then keeps no state for it
            return schedule.factor(done)

        self._schedule = schedule
        self._optimizer = optimizer
        self._scheduler = LambdaLR(optimizer, factor)

    @property
    def rate(self) -> float:
        """Of the next step."""
        return float(self._optimizer.param_groups[0]["lr"])

    @contextmanager
    def scaled(self, factor: float) -> Iterator[float]:
        """The rate of the next step times `factor`, for one step; the schedule itself is not moved."""
        groups = self._optimizer.param_groups
        scheduled = [group["lr"] for group in groups]
        for group, rate in zip(groups, scheduled, strict=True):
            group["lr"] = rate * factor
        try:
            yield self.rate
        finally:
            for group, rate in zip(groups, scheduled, strict=True):
                group["lr"] = rate

    def step(self) -> None:
        """A step of the run was taken, whether or not it had something to learn."""
        self._scheduler.step()

    def tensors(self) -> dict[str, Tensor]:
        """uint8 arrays by name: the scheduler's state, as JSON."""
        data = json.dumps(self._scheduler.state_dict(), sort_keys=True).encode()
        return {_STATE: torch.frombuffer(bytearray(data), dtype=torch.uint8)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """What `tensors` returned; the groups' own rates are restored with the optimizer.

        States of trainers without schedules hold none: their rate was constant, and stays so. Raises
        BrokenArtifact where a curve needs to know its place and the state does not say.
        """
        if _STATE in tensors:
            self._scheduler.load_state_dict(json.loads(tensors[_STATE].numpy().tobytes()))
        elif not self._schedule.is_flat:
            raise BrokenArtifact(
                f"the training state holds no scheduler, and lr_schedule={self._schedule.name} with "
                f"warmup_steps={self._schedule.warmup_steps} needs its place: begin a new run "
                "from a checkpoint"
            )
