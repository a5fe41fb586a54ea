"""A run from submission to its last checkpoint, and what must never train."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.services.grpo_trainer.bench import (
    MIXED,
    MODEL,
    RUN,
    Episodes,
    Trainer,
    World,
    refused,
    shortened,
    submission,
)
from tests.services.grpo_trainer.learners import same
from tests.services.grpo_trainer.tiny import VOCAB
from tests.support.waiting import until

from grpo_trainer import views
from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.training.v1 import events_pb2 as events
from upcycle.api.training.v1 import training_pb2 as training
from upcycle.api.trajectory.v1 import trajectory_pb2 as trajectory


async def run_to_end(world: World, steps: int = 3) -> None:
    """Two mixed groups per step, until the last checkpoint."""
    world.stream.append(submission(steps=steps))
    await Episodes(world).groups(range(2 * steps))
    async with Trainer(world):
        await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v{steps:08d}")


async def test_a_run_trains_each_group_once_and_ends_with_a_final_checkpoint(world: World) -> None:
    await run_to_end(world)
    settled = world.recorder.of(events.GroupSettled)
    assert [(one.outcome, one.step) for one in settled] == [("trained", step) for step in (1, 1, 2, 2, 3, 3)]
    assert len({one.group_id for one in settled}) == 6
    steps = world.recorder.of(events.StepCompleted)
    assert [(one.step, one.version) for one in steps] == [(1, 1), (2, 2), (3, 3)]
    assert all(len(one.trajectory_ids) == 8 for one in steps)
    saved = world.recorder.of(events.CheckpointSaved)
    assert [(one.version, one.is_final) for one in saved] == [(2, False), (3, True)]
    assert saved[0].parent_checkpoint_id == "ckpt-tiny-v00000000"
    assert saved[1].parent_checkpoint_id == "ckpt-tiny-v00000002"


MEASURED = {
    "mismatch_kl",
    "ratio_max",
    "clip_fraction",
    "entropy",
    "grad_norm",
    "tokens_per_s",
    "idle_fraction",
    "stall_s",
    "no_eos_fraction",
    "alarm_mismatch_kl",
}


async def test_every_step_says_how_it_went_and_how_old_its_trajectories_were(world: World) -> None:
    world.stream.append(submission(steps=1, max_staleness=2))
    cut = await Episodes(world).facts(0, MIXED)
    cut[0].stop_reason = trajectory.STOP_REASON_MAX_TOKENS
    for fact in cut:
        world.stream.append(fact)
    await Episodes(world).group(1, MIXED)
    async with Trainer(world) as trainer:
        step = await world.published(f"step.completed/{RUN}/1")
        await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v00000001")
        (point,) = views.steps(trainer.sessions, RUN, 10)
    assert set(step.metrics.values) >= MEASURED
    assert dict(step.metrics.staleness) == {0: 8}
    assert step.metrics.values["no_eos_fraction"] == 1 / 8
    assert (point.step, point.version, point.metrics) == (1, 1, step.metrics)


async def test_facts_of_a_step_come_in_order_groups_step_policy_checkpoint(world: World) -> None:
    await run_to_end(world, steps=2)
    kinds = [event_id.split("/")[0] for event_id in world.recorder.order]
    assert kinds == ["group.settled"] * 2 + ["step.completed", "policy.published"] + ["group.settled"] * 2 + [
        "step.completed",
        "policy.published",
        "checkpoint.saved",
    ]


async def test_a_group_without_spread_is_settled_at_once_and_never_trains(world: World) -> None:
    world.stream.append(submission())
    flat = await Episodes(world).group(0, (1.0, 1.0, 1.0, 1.0))
    async with Trainer(world) as trainer:
        fact = await world.settled(flat)
        assert (fact.outcome, fact.reason) == ("excluded", "zero_spread")
        assert trainer.sessions.get(RUN).state is not None
        assert not world.recorder.of(events.StepCompleted)


async def test_a_stale_group_is_settled_when_the_batch_is_cut(world: World) -> None:
    world.stream.append(submission(steps=4, max_staleness=0, prompts_per_step=1))
    episodes = Episodes(world)
    await episodes.group(0, MIXED, version=0)
    late = await episodes.group(1, MIXED, version=0)
    fresh = await episodes.group(2, MIXED, version=1)
    async with Trainer(world):
        assert (await world.settled(fresh)).outcome == "trained"
        fact = await world.settled(late)
    assert (fact.outcome, fact.reason, len(fact.episode_ids)) == ("excluded", "stale", 4)


async def test_held_out_tasks_never_train_whatever_names_them(world: World) -> None:
    world.held_out["gate-set"] = ("digest-1", "digest-9")
    world.stream.append(submission(gate="gate-set", steps=1))
    episodes = Episodes(world)
    by_split = await episodes.group(0, MIXED, split=common.SPLIT_HELD_OUT)
    by_digest = await episodes.group(1, MIXED)
    by_purpose = await episodes.group(2, MIXED, purpose=common.PURPOSE_EVAL)
    async with Trainer(world):
        for group_id in (by_split, by_digest, by_purpose):
            fact = await world.settled(group_id)
            assert (fact.outcome, fact.reason) == ("excluded", "held_out")
    assert not world.recorder.of(events.StepCompleted)


async def test_a_run_over_a_held_out_taskset_trains_nothing(world: World) -> None:
    world.stream.append(submission(split=common.SPLIT_HELD_OUT))
    group_id = await Episodes(world).group(0, MIXED)
    async with Trainer(world):
        assert (await world.settled(group_id)).reason == "held_out"


async def test_a_fact_that_lies_about_its_body_is_quarantined(world: World) -> None:
    world.stream.append(submission(steps=1, prompts_per_step=1))
    episodes = Episodes(world)
    facts = await episodes.facts(0, MIXED, split=common.SPLIT_HELD_OUT)
    for fact in facts:  # the body is held-out, the fact says train
        fact.episode.split = common.SPLIT_TRAIN
        world.stream.append(fact)
    honest = await episodes.group(1, MIXED)
    async with Trainer(world):
        assert (await world.settled(f"{RUN}-g00000")).reason == "quarantined"
        assert (await world.settled(honest)).outcome == "trained"


async def test_corrupt_and_missing_bodies_quarantine_their_group_and_the_next_takes_its_place(
    world: World,
) -> None:
    world.stream.append(submission(steps=1))
    groups = await Episodes(world).groups(range(4))
    keys = sorted(key for key in world.store.objects if "/trajectories/" in key)
    world.store.objects[keys[0]] = b"not a body"
    del world.store.objects[keys[5]]
    async with Trainer(world):
        assert (await world.settled(groups[3])).outcome == "trained"
        assert [(await world.settled(group)).reason for group in groups] == ["quarantined"] * 2 + ["", ""]


@pytest.mark.parametrize("ids", [[1, VOCAB], [1, -1], [1] * 300])
async def test_tokens_that_the_model_cannot_take_are_quarantined(world: World, ids: list[int]) -> None:
    world.stream.append(submission(steps=1, prompts_per_step=1))
    turn = trajectory.Turn(
        new_prompt_ids=ids,
        sampled_ids=[2],
        sampled_logprobs=[-1.0],
        versions=[trajectory.TokenVersions(version=0, num_tokens=1)],
    )
    odd = await Episodes(world).group(0, MIXED, turns=[turn])
    sound = await Episodes(world).group(1, MIXED)
    async with Trainer(world):
        assert (await world.settled(odd)).reason == "quarantined"
        assert (await world.settled(sound)).outcome == "trained"


async def test_a_shortened_group_trains_its_survivors_down_to_half(world: World) -> None:
    world.stream.append(submission(steps=1, prompts_per_step=1))
    episodes = Episodes(world)
    for member, reward in ((0, 1.0),):
        world.stream.append(await episodes.fact(0, member, reward))
    world.stream.append(shortened(0, 1))
    for member, reward in ((0, 1.0), (2, 0.0)):
        world.stream.append(await episodes.fact(1, member, reward))
    world.stream.append(shortened(1, 2))
    async with Trainer(world):
        short = await world.settled(f"{RUN}-g00000")
        trained = await world.settled(f"{RUN}-g00001")
    assert (short.outcome, short.reason, len(short.episode_ids)) == ("excluded", "short_group", 1)
    assert (trained.outcome, len(trained.episode_ids)) == ("trained", 2)


async def test_a_run_with_an_unknown_loss_fails_with_the_nearest_name_and_the_next_run_goes_on(
    world: World,
) -> None:
    world.stream.append(submission(loss="pppo"))
    world.stream.append(submission(run_id="run-2", steps=1))
    await Episodes(world, run_id="run-2").group(0, MIXED)
    await Episodes(world, run_id="run-2").group(1, MIXED)
    async with Trainer(world) as trainer:
        await world.published("step.completed/run-2/1")
        (failed,) = trainer.sessions.failed
        failure = failed.failure.detail
    assert "'pppo'" in failure
    assert "did you mean 'ppo'" in failure


async def test_a_run_over_an_unknown_model_fails_and_says_so(world: World) -> None:
    world.stream.append(submission(model="nobody"))
    async with Trainer(world) as trainer:
        await until(lambda: trainer.sessions.all and trainer.sessions.get(RUN).failure, "the run to fail")
        assert "'nobody' is not registered" in trainer.sessions.get(RUN).failure


async def test_the_trainer_ignores_evaluation_runs(world: World) -> None:
    submitted = submission()
    submitted.spec.purpose = common.PURPOSE_EVAL
    world.stream.append(submitted)
    await Episodes(world).group(0, (1.0,) * 4)
    world.stream.append(submission(run_id="run-2", steps=1))
    async with Trainer(world) as trainer:
        await Episodes(world, run_id="run-2").group(0, MIXED)
        await Episodes(world, run_id="run-2").group(1, MIXED)
        await world.published("step.completed/run-2/1")
        assert [session.spec.run_id for session in trainer.sessions.all] == ["run-2"]


async def test_after_a_rollback_the_run_trains_from_head_under_a_new_version(world: World) -> None:
    await world.publish_base(version=7, seed=1)
    await world.publish_base(version=5, seed=2)  # head went back to 5; 7 stays published
    world.stream.append(submission(steps=1))
    episodes = Episodes(world)
    for index in range(2):
        await episodes.group(index, MIXED, version=8)
    async with Trainer(world):
        await world.published("step.completed/run-0000000000ab/1")
    published = [(one.version, one.step) for one in world.recorder.of(events.PolicyPublished)]
    assert published == [(8, 0), (9, 1)]
    head, again = await world.weights(5), await world.weights(8)
    assert all(head[name].equal(again[name]) for name in head)


async def test_a_finished_run_is_closed_and_stays_closed(world: World) -> None:
    await run_to_end(world, steps=1)
    world.stream.append(taskset_events.RunFinished(run_id=RUN, model=MODEL))
    async with Trainer(world):
        await until(lambda: any(key.endswith("closed.json") for key in world.store.objects), timeout_s=60)
    before = len(world.recorder.order)
    await Episodes(world).group(50, MIXED)
    async with Trainer(world) as trainer:
        await refused(world, "run-after")
        await until(lambda: trainer.sessions.elsewhere == [], timeout_s=60)  # the first may not have noted it
        assert (await views.stored(trainer.sessions, RUN)).state == training.SESSION_STATE_FINISHED
    assert world.recorder.order[before:] == ["session.failed/run-after"]


async def test_order_of_arrival_within_a_batch_and_repeats_change_no_bit(tmp_path: Path) -> None:
    weights = []
    for seed in (None, 1, 2):
        world = World(tmp_path / str(seed))
        await world.publish_base()
        world.stream.append(submission(steps=1, prompts_per_step=3))
        facts = [fact for index in range(3) for fact in await Episodes(world).facts(index, MIXED)]
        if seed is not None:
            random.Random(seed).shuffle(facts)
            facts += facts[:5]
        for fact in facts:
            world.stream.append(fact)
        async with Trainer(world):
            await world.published(f"step.completed/{RUN}/1")
        weights.append(await world.weights(1))
    assert all(same(weights[0], other) for other in weights[1:])


async def test_two_models_train_side_by_side_each_with_its_own_line_of_versions(world: World) -> None:
    await world.publish_base(model="other", seed=5)
    world.stream.append(submission(steps=2, prompts_per_step=1))
    world.stream.append(submission(run_id="run-2", model="other", steps=3, prompts_per_step=1))
    for index in range(3):
        await Episodes(world).group(index, MIXED)
        await Episodes(world, run_id="run-2").group(index, MIXED)
    async with Trainer(world):
        await world.published("checkpoint.saved/default/ckpt-other-v00000003")
        await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v00000002")
    lines = [(one.model, one.version) for one in world.recorder.of(events.PolicyPublished)]
    assert sorted(lines) == [("other", 1), ("other", 2), ("other", 3), ("tiny", 1), ("tiny", 2)]
