"""Bodies of trajectories, on their way from the object store into a batch."""

from __future__ import annotations

import threading

import pytest
from tests.services.grpo_trainer.bench import MIXED, RUN, Episodes, Trainer, World, submission

from grpo_trainer.runs import stores
from trajectory_body import unpack
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody


async def test_bodies_are_unpacked_in_a_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many long ones that arrive together would stop the event loop, and GetSession would not answer."""
    threads: list[threading.Thread] = []

    def noted(data: bytes) -> TrajectoryBody:
        threads.append(threading.current_thread())
        return unpack(data)

    monkeypatch.setattr(stores, "unpack", noted)
    world.stream.append(submission(prompts_per_step=1))
    await Episodes(world).group(0, MIXED)
    async with Trainer(world):
        settled = await world.settled(f"{RUN}-g00000")
    assert settled.outcome == "trained"
    assert len(threads) == 4
    assert threading.main_thread() not in threads
