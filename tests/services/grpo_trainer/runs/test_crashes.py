"""A trainer that is killed and restarted ends with the bits of one that was not; test_offer_crashes.py
kills at every write.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.services.grpo_trainer.bench import (
    MODEL,
    RUN,
    Episodes,
    Trainer,
    World,
    assert_same_bits,
    shortened,
    submission,
)
from tests.services.grpo_trainer.crashes import Fuse, outcomes, recorded, restarted, trained_once, wired
from tests.services.grpo_trainer.learners import distance

from grpo_trainer.runs.stores import BlobStates

STEPS = 3
LAST = f"checkpoint.saved/default/ckpt-{MODEL}-v{STEPS:08d}"


async def new_world(folder: Path, **config: Any) -> World:
    """A run with everything in it: mixed, flat, stale, short and surplus groups, repeats, interleaved
    members."""
    world = World(folder)
    await world.publish_base()
    world.stream.append(
        submission(steps=STEPS, prompts_per_step=1, max_staleness=1, checkpoint_every_steps=2, **config)
    )
    episodes = Episodes(world)
    first, second = (
        await episodes.facts(0, (1.0, 0.0, 0.5, 0.0)),
        await episodes.facts(1, (0.0, 0.0, 1.0, 0.0)),
    )
    for pair in zip(first, second, strict=True):
        for fact in pair:
            world.stream.append(fact)
    world.stream.append(first[2])
    await episodes.group(2, (0.0,) * 4)
    world.stream.append(await episodes.fact(3, 1, 1.0))
    world.stream.append(shortened(3, 1))
    await episodes.group(4, (1.0, 0.0, 0.0, 0.0), version=0)
    await episodes.group(5, (1.0, 0.0, 1.0, 0.0), version=1)
    await episodes.group(6, (1.0, 0.0, 0.0, 0.0), version=1)
    return world


async def test_a_trainer_that_dies_all_the_time_still_gets_there(tmp_path: Path) -> None:
    whole = await restarted(await new_world(tmp_path / "whole"), LAST)
    world = await new_world(tmp_path / "unlucky")
    lives = 0
    while lives < 40:
        lives += 1
        async with Trainer(world, change=wired(Fuse(16))) as trainer:  # less repeats itself
            dying = asyncio.create_task(trainer.death())
            ending = asyncio.create_task(world.published(LAST))
            await asyncio.wait({dying, ending}, return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            ending.cancel()
        if LAST in world.recorder.events:
            break
    assert lives > 2
    await assert_same_bits(whole, world, versions=STEPS)
    assert outcomes(world) == outcomes(whole)


async def test_a_run_of_adapters_is_killed_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = await new_world(tmp_path, lora_rank=2)
    await assert_kills_change_no_bit(whole)


async def test_a_run_with_a_schedule_is_killed_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = await new_world(tmp_path / "whole", lr_schedule="cosine", warmup_steps=1)
    await assert_kills_change_no_bit(whole)
    flat = await restarted(await new_world(tmp_path / "flat"), LAST)
    assert distance(await whole.weights(1), await flat.weights(1)) > 1e-3


async def test_a_run_with_credit_by_turn_is_killed_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    fading = {"reward_schedule": "fade", "fade_at": 0.1, "fade_steps": 1, "turn_reward_weight": 0.5}
    whole = await new_world(tmp_path / "whole", turn_credit="turn", turn_discount=0.5, **fading)
    await assert_kills_change_no_bit(whole)
    flat = await restarted(await new_world(tmp_path / "flat"), LAST)
    assert distance(await whole.weights(1), await flat.weights(1)) > 1e-3


async def assert_kills_change_no_bit(whole: World) -> None:
    """At five places of the run."""
    left_behind = await recorded(whole, LAST)
    reasons = {reason for _, reason, _, _ in outcomes(whole).values()}
    assert reasons == {"", "stale", "zero_spread", "short_group"}
    for killed in left_behind[3 :: len(left_behind) // 4]:
        world = await restarted(killed, LAST)
        await assert_same_bits(whole, world, versions=STEPS)
        assert outcomes(world) == outcomes(whole)
        trained_once(world)


async def test_a_second_trainer_waits_for_the_one_that_holds_the_run(tmp_path: Path) -> None:
    world = await new_world(tmp_path / "one")
    async with Trainer(world) as left, Trainer(world) as right:
        await world.published(LAST)
        held = [len(one.sessions.all) for one in (left, right)]
        assert sorted(held) == [0, 1]
        assert f"session.failed/{RUN}" not in world.recorder.events
    trained_once(world)


async def test_old_states_go_and_those_of_checkpoints_stay(tmp_path: Path) -> None:
    world = await restarted(await new_world(tmp_path / "one"), LAST)
    kept = {key.split("/")[4] for key in world.store.objects if key.startswith("default/training/")}
    assert kept == {"step-00000000", "step-00000002", "step-00000003", "attempts.json"}
    claim = f"default/training/{MODEL}/{RUN}/step-00000000/state.json"  # stays until the run is over
    assert [key for key in world.store.objects if f"{RUN}/step-00000000/" in key] == [claim]


async def test_what_attempts_left_behind_goes_and_what_a_checkpoint_names_stays(tmp_path: Path) -> None:
    world = await restarted(await new_world(tmp_path / "one"), LAST)
    folder = f"default/training/{MODEL}/{RUN}/step-00000002"
    named = {key: data for key, data in world.store.objects.items() if key.startswith(f"{folder}/")}
    world.store.objects[f"{folder}/0123456789abcdef/tensors.safetensors"] = b"of a trainer that was killed"
    await BlobStates(world.store).prune(RUN, MODEL, newest=1)
    left = {key: data for key, data in world.store.objects.items() if key.startswith(f"{folder}/")}
    assert left == named
    assert len(named) == 3
