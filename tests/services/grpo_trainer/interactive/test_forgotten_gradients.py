"""Gradients whose client is gone: they, and their model, are not kept for ever."""

from __future__ import annotations

import asyncio

import pytest
from tests.services.grpo_trainer.bench import MODEL, World
from tests.services.grpo_trainer.interactive.trainers import batch, trainer_on
from tests.support.waiting import until

from grpo_trainer.domain.errors import LostGradients

HOUR_S = 3600.0


async def test_gradients_without_a_call_for_an_hour_are_dropped_and_their_model_is_closed(
    world: World,
) -> None:
    await world.publish_base(model="other", seed=1)
    now = [0.0]
    async with trainer_on(world, max_open=1, clock=lambda: now[0]) as trainer:
        await trainer.forward_backward("a", batch())
        now[0] += 1.0
        await trainer.forward_backward("a", batch(), model="other")
        now[0] = HOUR_S - 1.0
        await trainer.sessions.drop_old_gradients()
        assert [one.model for one in trainer.sessions.views()] == ["other", MODEL]
        now[0] = HOUR_S
        await trainer.sessions.drop_old_gradients()
        assert [one.model for one in trainer.sessions.views()] == ["other"]
        assert (await trainer.optim_step("b", model="other", gradients=("a",))).version == 1
        with pytest.raises(LostGradients, match=r"gradients of a .* no call came for 3600 s"):
            await trainer.optim_step("b", gradients=("a",))


async def test_a_call_begins_the_hour_anew(world: World) -> None:
    now = [0.0]
    async with trainer_on(world, clock=lambda: now[0]) as trainer:
        await trainer.forward_backward("a", batch())
        now[0] = HOUR_S - 1.0
        await trainer.forward_backward("b", batch())
        now[0] += HOUR_S - 1.0
        await trainer.sessions.drop_old_gradients()
        assert (await trainer.optim_step("c", gradients=("a", "b"))).version == 1


async def test_the_loop_drops_them_until_it_is_stopped(world: World) -> None:
    stop = asyncio.Event()
    async with trainer_on(world, gradients_kept_s=0.2) as trainer:
        loop = asyncio.create_task(trainer.sessions.drop_forgotten(stop))
        await trainer.forward_backward("a", batch())
        await until(lambda: not trainer.sessions._sessions[MODEL].has_gradients)
        stop.set()
        await asyncio.wait_for(loop, 30)
        with pytest.raises(LostGradients, match="call forward_backward again"):
            await trainer.optim_step("b", gradients=("a",))
