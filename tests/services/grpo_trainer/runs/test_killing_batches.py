"""A batch that kills the process each time ends its run, also while the step before it is not durable yet."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from tests.services.grpo_trainer.bench import MODEL, Episodes, Trainer, World, submission
from tests.services.grpo_trainer.runs.test_attempts import FAILED
from tests.support.waiting import until

from grpo_trainer.domain.following import Scales
from grpo_trainer.learner.protocol import BatchGroup, Learner, StepNumbers
from grpo_trainer.runs.deps import RunDeps
from upcycle.api.training.v1 import events_pb2 as events

_FOREVER_S = 3600


class SlowUpload:
    """A store in which the marker of step 1 arrives too late."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put_if_absent(self, key: str, data: bytes) -> Any:
        if "step-00000001/state" in key and b'"claim"' not in data:
            await asyncio.sleep(_FOREVER_S)
        return await self._inner.put_if_absent(key, data)


class Life:
    """One process: it is killed when it computes the batch of the second group. left: the store as it was
    then."""

    def __init__(self, world: World, *, first_is_durable: bool) -> None:
        self.killed = asyncio.Event()
        self.left: dict[str, Any] = {}
        self._world = world
        self._first_is_durable = first_is_durable

    def change(self, deps: RunDeps) -> RunDeps:
        """The deps of this process."""
        if not self._first_is_durable:
            states: Any = vars(deps.states)
            states["_store"] = SlowUpload(states["_store"])
        return dataclasses.replace(deps, new_learner=lambda: self._killing(deps.new_learner()))

    def _killing(self, learner: Learner) -> Learner:
        compute = learner.step

        async def step(groups: Sequence[BatchGroup], scales: Scales) -> StepNumbers:
            if not groups[0].group_id.endswith("g00001"):
                return await compute(groups, scales)
            if self._first_is_durable:
                await self._world.published(f"policy.published/default/{MODEL}/1")
            self.left.update(self._world.store.objects)
            self.killed.set()
            await asyncio.sleep(_FOREVER_S)
            raise AssertionError("killed processes compute nothing")

        vars(learner)["step"] = step
        return learner

    async def run(self) -> bool:
        """Until it is killed; False where the run failed instead."""
        async with Trainer(self._world, change=self.change) as trainer:
            await until(lambda: self.killed.is_set() or FAILED in self._world.recorder.events)
            if not self.killed.is_set():
                return False
            trainer.sessions._leave_s = 0.01
        self._world.store.objects.clear()
        self._world.store.objects.update(self.left)
        return True


@pytest.mark.parametrize("first_is_durable", [True, False])
async def test_the_third_start_of_a_killing_batch_ends_its_run(world: World, first_is_durable: bool) -> None:
    world.stream.append(submission(steps=3, prompts_per_step=1, max_staleness=2))
    await Episodes(world).groups(range(2))
    lives = [await Life(world, first_is_durable=first_is_durable).run() for _ in range(2)]
    assert lives == [True, True]
    assert not await Life(world, first_is_durable=first_is_durable).run()
    (failed,) = world.recorder.of(events.SessionFailed)
    assert failed.kind == "killed"
