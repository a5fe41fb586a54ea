"""Deaths at durable writes, and what must hold after them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from tests.services.grpo_trainer.bench import Trainer, World

from grpo_trainer.runs.deps import RunDeps
from upcycle.api.training.v1 import events_pb2 as events

WRITES = {"put", "put_file", "put_if_absent", "delete", "publish", "decide"}


class Killed(BaseException):
    """Stands for kill -9: nothing catches it, nothing is written after it."""


class Fuse:
    """Lets so many durable writes through, then kills: before the next one, or, if `late`, after it, when
    its answer never came. Writes take a while, so that the next step computes meanwhile."""

    def __init__(self, writes: int | None = None, *, late: bool = False, write_s: float = 0.01) -> None:
        self.left = writes
        self.used = 0
        self._late = late
        self._write_s = write_s

    async def burn(self, write: Callable[[], Awaitable[Any]]) -> Any:
        await asyncio.sleep(self._write_s)
        spent = self.left is not None and self.used >= self.left
        if spent and not (self._late and self.used == self.left):
            raise Killed(f"before write {self.used + 1}")
        self.used += 1
        written = await write()
        if spent:
            raise Killed(f"after write {self.used}")
        return written


class Recording(Fuse):
    """Lets every write through, and keeps what a kill before it would leave behind. A write that was done
    and not answered leaves what a kill before the next one leaves.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self.left_behind: list[World] = []
        self._world = world

    async def burn(self, write: Callable[[], Awaitable[Any]]) -> Any:
        async def kept() -> Any:
            self.left_behind.append(self._world.copy())
            return await write()

        return await super().burn(kept)


class Guarded:
    """Any port: its writes burn the fuse first."""

    def __init__(self, inner: Any, fuse: Fuse) -> None:
        self._inner = inner
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name not in WRITES:
            return attribute

        async def write(*args: Any, **kwargs: Any) -> Any:
            return await self._fuse.burn(lambda: attribute(*args, **kwargs))

        return write


def wired(fuse: Fuse) -> Callable[[RunDeps], RunDeps]:
    """Puts the fuse below every adapter that writes."""

    def change(deps: RunDeps) -> RunDeps:
        for adapter in (deps.states, deps.policies, deps.bodies):
            vars(adapter)["_store"] = Guarded(vars(adapter)["_store"], fuse)
        kept = vars(vars(deps.facts)["_kept"])
        kept["_store"] = Guarded(kept["_store"], fuse)
        vars(deps.facts)["_bus"] = Guarded(vars(deps.facts)["_bus"], fuse)
        return dataclasses.replace(deps)

    return change


async def recorded(world: World, last: str) -> list[World]:
    """Run a trainer until it has published `last`; returns what a kill before each write leaves."""
    recording = Recording(world)
    async with Trainer(world, change=wired(recording)):
        await world.published(last)
    return recording.left_behind


async def restarted(world: World, last: str) -> World:
    """The world after another trainer has published `last`."""
    async with Trainer(world):
        await world.published(last)
    return world


def outcomes(world: World) -> dict[str, tuple[str, str, int, tuple[str, ...]]]:
    """How each group ended."""
    return {
        one.group_id: (one.outcome, one.reason, one.step, tuple(one.episode_ids))
        for one in world.recorder.of(events.GroupSettled)
    }


def trained_once(world: World) -> None:
    """No trajectory in two steps."""
    ids = [one for step in world.recorder.of(events.StepCompleted) for one in step.trajectory_ids]
    assert len(ids) == len(set(ids))
