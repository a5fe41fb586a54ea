"""Interactive training that is killed at every durable write and restarted ends in the same bits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.services.grpo_trainer.bench import MODEL, World
from tests.services.grpo_trainer.crashes import Fuse, Guarded, Killed
from tests.services.grpo_trainer.fakes import START
from tests.services.grpo_trainer.interactive.trainers import SGD_LIKE, Policies, Registry, inline, trainer_on
from tests.services.grpo_trainer.learners import distance, same

from grpo_trainer.adapters.bus_facts import BusFacts
from grpo_trainer.domain.errors import InvalidInput, LineageTaken, LostGradients
from grpo_trainer.interactive.state import StepDone
from grpo_trainer.interactive.states_store import InteractiveStates
from grpo_trainer.learner.prepared import Adam
from identities.entities import checkpoint_id
from policy_files import KeptFacts

STEPS = 2


def batch(step: int) -> list[Any]:
    return [inline(10 * step + member, float(member % 2)) for member in range(4)]


def fused(world: World, registry: Registry, fuse: Fuse) -> dict[str, Any]:
    """Ports of which every write burns the fuse first."""
    states, policies = InteractiveStates(world.store), Policies(world)
    for adapter in (states, policies):
        vars(adapter)["_store"] = Guarded(vars(adapter)["_store"], fuse)
    facts = BusFacts(Guarded(world.recorder, fuse), KeptFacts(Guarded(world.store, fuse)), now=lambda: START)
    return {"states": states, "policies": policies, "facts": facts, "heads": Promoting(registry, fuse)}


class Promoting:
    """A registry whose promotion burns the fuse."""

    def __init__(self, inner: Registry, fuse: Fuse) -> None:
        self._inner = inner
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def promote(self, *args: Any, **kwargs: Any) -> int | None:
        moved: int | None = await self._fuse.burn(lambda: self._inner.promote(*args, **kwargs))
        return moved


class Client:
    """Does what a caller does: repeats a request whose answer never came, under its id, and starts a pass
    again where its gradient is lost."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.registry = Registry(world)
        self.done: list[StepDone] = []
        self.passes = 0
        self._acked: str | None = None

    async def work(self, fuse: Fuse) -> None:
        async with trainer_on(self.world, **fused(self.world, self.registry, fuse)) as trainer:
            while len(self.done) < STEPS:
                step = len(self.done) + 1
                if self._acked is None:
                    self.passes += 1
                    await trainer.forward_backward(f"pass-{self.passes}", batch(step), group_size=4)
                    self._acked = f"pass-{self.passes}"
                try:
                    done = await trainer.optim_step(f"optim-{step}", Adam(1e-3), gradients=(self._acked,))
                except LostGradients:
                    self._acked = None
                    continue
                self.done.append(done)
                self._acked = None


async def trained(folder: Path, fuse: Fuse) -> tuple[World, Client]:
    """A world after two steps, through one death."""
    world = World(folder)
    await world.publish_base()
    client = Client(world)
    try:
        await client.work(fuse)
    except Killed:
        await client.work(Fuse(write_s=0.0))
    return world, client


def announced(versions: list[int]) -> set[str]:
    """Each version once, and none that no step is behind."""
    published = {f"policy.published/default/{MODEL}/{version}" for version in versions}
    return published | {f"checkpoint.saved/default/ckpt-{MODEL}-v{version:08d}" for version in versions}


async def test_a_kill_at_any_write_trains_nothing_twice(tmp_path: Path) -> None:
    """Before the write, or after it when its answer never comes: each leaves what the other leaves one
    write on.
    """
    counting = Fuse(write_s=0.0)
    calm, calm_client = await trained(tmp_path / "calm", counting)
    async with trainer_on(calm) as trainer:
        expected = [await trainer.weights(version) for version in (1, 2)]
    assert counting.used >= 16
    for kill_at in range(counting.used):
        fuse = Fuse(kill_at, late=kill_at % 2 == 1, write_s=0.0)
        world, client = await trained(tmp_path / f"kill-{kill_at}", fuse)
        versions = [one.version for one in client.done]
        assert [one.step for one in client.done] == [1, 2], kill_at
        assert 1 <= versions[0] < versions[1] <= 3, kill_at  # a number that no event names may be skipped
        assert [one.metrics for one in client.done] == [one.metrics for one in calm_client.done], kill_at
        assert world.heads[MODEL].version == versions[1], kill_at
        async with trainer_on(world) as trainer:
            for version, weights in zip(versions, expected, strict=True):
                assert same(await trainer.weights(version), weights), (kill_at, version)
        assert set(world.recorder.events) == announced(versions), kill_at


async def test_the_optimizer_moments_survive_a_restart(tmp_path: Path) -> None:
    one, two = World(tmp_path / "one"), World(tmp_path / "two")
    for world in (one, two):
        await world.publish_base()
    async with trainer_on(one) as trainer:
        for step in (1, 2):
            await trainer.forward_backward(f"f{step}", batch(step))
            await trainer.optim_step(f"o{step}", Adam(1e-3))
        expected = await trainer.weights(2)
    for step in (1, 2):
        async with trainer_on(two) as trainer:
            await trainer.forward_backward(f"f{step}", batch(step))
            await trainer.optim_step(f"o{step}", Adam(1e-3))
            found = await trainer.weights(step)
    assert same(found, expected)


async def test_steps_that_keep_head_are_continued_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    await world.publish_base()
    registry = Registry(world)
    for step in (1, 2):
        async with trainer_on(world, registry=registry) as trainer:
            await trainer.forward_backward(f"f{step}", batch(step))
            done = await trainer.optim_step(f"o{step}", SGD_LIKE, keep_head=True)
            assert not done.is_head
    assert world.heads[MODEL].version == 0
    saved = world.recorder.events["checkpoint.saved/default/ckpt-tiny-v00000002"]
    assert saved.parent_checkpoint_id == checkpoint_id(MODEL, 1)  # type: ignore[attr-defined]


async def test_a_gradient_that_is_not_finite_is_not_applied(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    await world.publish_base()
    async with trainer_on(world) as trainer:
        kept = await trainer.forward_backward("a", batch(1))
        with pytest.raises(InvalidInput, match="reward inf"):
            await trainer.forward_backward("b", [inline(1, float("inf")), inline(2, 0.0)])
        done = await trainer.optim_step("c")
        assert done.metrics["tokens"] == kept.metrics["tokens"]


async def test_a_version_of_another_trainer_is_not_overwritten(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    await world.publish_base()
    async with trainer_on(world) as trainer:
        await trainer.forward_backward("a", batch(1))
        newest = trainer.deps.policies.newest_uploaded
        taken = await newest(MODEL)
        await world.publish_base(version=1, seed=7)  # a run of another trainer was faster
        await trainer.registry.set_head(MODEL, 0)
        vars(trainer.deps.policies)["newest_uploaded"] = lambda model: asyncio.sleep(0, taken)
        with pytest.raises(LineageTaken, match="versions are never reused"):
            await trainer.optim_step("b")
        del vars(trainer.deps.policies)["newest_uploaded"]
        await trainer.forward_backward("c", batch(1))
        done = await trainer.optim_step("d")
        assert (done.step, done.version) == (1, 2)
        assert distance(await trainer.weights(1), await trainer.weights(2)) > 0.01
