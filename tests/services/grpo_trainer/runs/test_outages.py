"""What is away is waited for by name; what is broken fails its run, says so, and leaves the others alone."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest
from tests.services.grpo_trainer.bench import MIXED, MODEL, RUN, Episodes, Trainer, World, refused, submission
from tests.support.waiting import until

from grpo_trainer import views
from grpo_trainer.adapters.policies import RegistryPolicies
from grpo_trainer.domain.states import BasePolicy
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.runs.deps import RunDeps
from upcycle.api.training.v1 import training_pb2 as training
from upcycle.errors import Unavailable


class Flaky:
    """Two of five calls fail."""

    def __init__(self, inner: Any, error: Exception, names: set[str]) -> None:
        self._inner = inner
        self._error = error
        self._names = names
        self._luck = random.Random(1)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name not in self._names:
            return attribute

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self._luck.random() < 0.4:
                raise self._error
            return await attribute(*args, **kwargs)

        return call


def flaky(deps: RunDeps) -> RunDeps:
    """Store and bus often do not answer, and trainers come back soon."""
    away = Unavailable("gone for a moment")
    names = {"put", "put_file", "put_if_absent", "get", "get_file", "read", "list", "delete"}
    for adapter in (deps.states, deps.bodies):
        vars(adapter)["_store"] = Flaky(vars(adapter)["_store"], away, names)
    vars(deps.facts)["_bus"] = Flaky(
        vars(deps.facts)["_bus"], Unavailable("gone too"), {"publish", "decide", "standing"}
    )
    return deps


async def one_step(world: World, *, run_id: str = RUN, model: str = MODEL) -> None:
    world.stream.append(submission(run_id=run_id, model=model, steps=1, prompts_per_step=1))
    await Episodes(world, run_id=run_id).group(0, MIXED)


async def failure_of(trainer: Trainer, run_id: str) -> str:
    def failed() -> str:
        found = [view for view in views.every(trainer.sessions) if view.run_id == run_id]
        return "".join(view.failure for view in found if view.state == training.SESSION_STATE_FAILED)

    return str(await until(failed, f"{run_id} to fail"))


@pytest.mark.study
async def test_a_store_and_a_bus_that_often_fail_only_cost_time(world: World) -> None:
    await one_step(world)
    async with Trainer(world, change=flaky):
        await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v00000001", timeout_s=60)
    assert len(await world.weights(1)) > 0


async def test_a_registry_that_is_away_is_named_until_it_comes_back(world: World) -> None:
    await one_step(world)
    answers: list[BasePolicy] = []

    class Away(RegistryPolicies):
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        async def head(self, model: str) -> BasePolicy:
            if not answers:
                raise Unavailable("the registry at nowhere:1")
            return answers[0]

    async with Trainer(
        world, change=lambda deps: dataclasses.replace(deps, policies=Away(deps.policies))
    ) as one:
        waiting = await until(one.sessions.waiting_for, "a session that waits")
        assert waiting == f"{RUN} waits for the registry at nowhere:1"
        answers.append(world.heads[MODEL])
        await world.published(f"step.completed/{RUN}/1")


async def test_a_corrupt_base_policy_fails_its_run_and_the_next_one_trains(world: World) -> None:
    await world.publish_base(model="broken", seed=3)
    for key in world.store.objects:
        if key.startswith("default/policies/broken/") and key.endswith(".safetensors"):
            world.store.objects[key] = b"rotten"
    await one_step(world, run_id="run-broken", model="broken")
    await one_step(world)
    async with Trainer(world) as trainer:
        assert "expected" in await failure_of(trainer, "run-broken")
        await world.published(f"step.completed/{RUN}/1")


async def test_a_corrupt_training_state_fails_its_run_and_the_others_go_on(world: World) -> None:
    world.stream.append(submission(steps=9, prompts_per_step=1))
    await Episodes(world).group(0, MIXED)
    async with Trainer(world):
        await world.published(f"policy.published/default/{MODEL}/1")
    for key in world.store.objects:
        if key.startswith("default/training/") and key.endswith(".safetensors"):
            world.store.objects[key] = b"rotten"
    await world.publish_base(model="other", seed=4)
    await one_step(world, run_id="run-2", model="other")
    async with Trainer(world) as trainer:
        assert "tensors of step 1" in await failure_of(trainer, RUN)
        await world.published("step.completed/run-2/1")


@pytest.mark.parametrize("damage", [b"{", b'{"schema_version": 99}', b"[]"])
async def test_a_marker_that_cannot_be_read_is_reported_and_never_overwritten(
    world: World, damage: bytes
) -> None:
    world.stream.append(submission(steps=9, prompts_per_step=1))
    await Episodes(world).group(0, MIXED)
    async with Trainer(world):
        await world.published(f"policy.published/default/{MODEL}/1")
    marker = max(key for key in world.store.objects if key.endswith("/state.json"))
    world.store.objects[marker] = damage
    async with Trainer(world) as trainer:
        assert "no training state" in await failure_of(trainer, RUN)
        await refused(world, "run-after")
    assert world.store.objects[marker] == damage


async def test_an_altered_configuration_in_a_state_is_noticed(world: World) -> None:
    world.stream.append(submission(steps=9, prompts_per_step=1))
    await Episodes(world).group(0, MIXED)
    async with Trainer(world):
        await world.published(f"policy.published/default/{MODEL}/1")
    marker = max(key for key in world.store.objects if key.endswith("/state.json"))
    state = json.loads(world.store.objects[marker])
    state["spec"]["learning_rate"] = 1.0
    world.store.objects[marker] = json.dumps(state).encode()
    async with Trainer(world) as trainer:
        assert "another configuration" in await failure_of(trainer, RUN)


async def test_a_retry_says_what_it_waits_for_and_ends_with_its_budget() -> None:
    retry = RetryUntilAvailable(budget_s=2.0, first_pause_s=0.01)
    awaited: list[str | None] = []

    async def never() -> None:
        awaited.append(retry.waiting_for)
        raise Unavailable("the registry")

    with pytest.raises(Unavailable, match="the registry"):
        await retry.until_available(never)
    assert awaited[0] is None
    assert set(awaited[1:]) == {"the registry"}
    assert retry.waiting_for == "the registry"  # what was given up is still awaited
