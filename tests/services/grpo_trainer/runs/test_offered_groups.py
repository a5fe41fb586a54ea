"""Groups of evaluations in a run: trained beside the run's own, or released with a reason, and said once."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import REGISTRY
from tests.services.grpo_trainer.bench import (
    MIXED,
    MODEL,
    RUN,
    Episodes,
    Trainer,
    World,
    submission,
    tiny_policy,
)
from tests.services.grpo_trainer.crashes import trained_once
from tests.services.grpo_trainer.evaluations import EVALUATION, Evaluation, settled_id
from tests.services.grpo_trainer.fakes import START
from tests.services.grpo_trainer.runs.test_cancelled_runs import MARKER, Gate, cancelled, slowly, until_closed
from tests.support.waiting import until

from blob_store import BlobRef
from episodes import GroupOutcome, GroupReason
from grpo_trainer import views
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.states import BasePolicy, SessionPhase
from grpo_trainer.domain.trajectories import Settlement
from grpo_trainer.telemetry import TrainerInstruments
from identities.objects import trajectory_body as body_key
from policy_files import PolicyFacts, load, manifest_ref, upload
from trajectory_body import pack
from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.training.v1 import events_pb2 as events
from upcycle.api.training.v1.training_pb2 import CanaryRow

OTHER = "run-0000000000e2"


def stopping() -> taskset_events.RunStopping:
    return taskset_events.RunStopping(run_id=RUN, model=MODEL, reason="enough")


def over() -> taskset_events.RunFinished:
    return taskset_events.RunFinished(run_id=RUN, model=MODEL)


async def answer(world: World, group_id: str) -> Any:
    """The settlement of an offered group."""
    return await world.published(settled_id(group_id))


async def publish_child(world: World, version: int, parent: int, *, tokenizer: str = "{}") -> None:
    """Another version of the model, with the weights of a seed, as head."""
    folder = tiny_policy(world.folder / f"child-{version}", seed=version)
    (folder / "tokenizer.json").write_text(tokenizer)
    canary = (CanaryRow(token_ids=[1, 2], logprobs=[-1.0]),)
    before = await load(world.store, MODEL, parent)
    facts = PolicyFacts(model=MODEL, version=version, created_at=START, parent=before, canary=canary)
    ref = manifest_ref(await upload(world.store, folder, facts))
    identity = f"ckpt-{MODEL}-v{version:08d}"
    world.heads[MODEL] = BasePolicy(version, identity, BlobRef(ref.key, ref.sha256, ref.size_bytes))


async def test_offered_groups_train_beside_the_runs_own_in_order_of_completion(world: World) -> None:
    world.stream.append(submission(steps=2, checkpoint_every_steps=1))
    episodes, first, second = Episodes(world), Evaluation(world), Evaluation(world, OTHER, 4)
    own = await episodes.group(0, MIXED)
    offers = [await first.offered(1), await second.offered(2, MIXED), await first.offered(3)]
    async with Trainer(world) as trainer:
        await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v00000002")
        view = views.find(trainer.sessions, RUN)
    assert dict(view.sources) == {EVALUATION: 2, OTHER: 1}
    assert dict(view.settled) == {"trained": 4}
    settled = {one.group_id: one for one in world.recorder.of(events.GroupSettled)}
    steps = {group: (one.outcome, one.step, one.source_run_id) for group, one in settled.items()}
    assert steps == {
        own: ("trained", 1, ""),
        offers[0]: ("trained", 1, EVALUATION),
        offers[1]: ("trained", 2, OTHER),
        offers[2]: ("trained", 2, EVALUATION),
    }
    assert set(world.recorder.events) >= {f"group.settled/{own}", *map(settled_id, offers)}
    trained = [list(one.trajectory_ids) for one in world.recorder.of(events.StepCompleted)]
    assert [len(ids) for ids in trained] == [4 + 8, 4 + 8]
    assert trained[0][4:] == [f"traj-{offers[0]}-e{number:03d}-a0" for number in range(8)]
    saved = world.recorder.of(events.CheckpointSaved)
    assert [dict(one.sources) for one in saved] == [{EVALUATION: 1}, {EVALUATION: 2, OTHER: 1}]


async def test_an_offer_that_does_not_fit_is_released_at_once(world: World) -> None:
    world.held_out["gate-set"] = ("digest-2",)
    world.stream.append(submission(gate="gate-set"))
    evaluation = Evaluation(world)
    groups = [
        await evaluation.offered(0, (1.0,) * 8),
        await evaluation.offered(1, split=common.SPLIT_HELD_OUT),
        await evaluation.offered(2),
        await evaluation.offered(3, version=0, before_start=True, rewards=(1.0, 0.0)),
        await evaluation.offered(4, version=5, before_start=True),
        await evaluation.offered(5, (1.0,)),
        await evaluation.offered(6, (1.0, float("nan"))),
    ]
    reasons = ["zero_spread", "held_out", "held_out", "", "version", "short_group", "quarantined"]
    async with Trainer(world) as trainer:
        for group, reason in zip(groups, reasons, strict=True):
            if reason:
                fact = await answer(world, group)
                assert (fact.outcome, fact.reason) == ("released", reason)
                assert (fact.run_id, fact.source_run_id, fact.step) == (RUN, EVALUATION, 0)
        view = views.find(trainer.sessions, RUN)
    assert view.groups_ready == 1
    assert dict(view.settled) == {
        "released(zero_spread)": 1,
        "released(held_out)": 2,
        "released(version)": 1,
        "released(short_group)": 1,
        "released(quarantined)": 1,
    }
    assert not world.recorder.of(events.StepCompleted)


async def test_bodies_that_must_not_or_cannot_train_are_released_and_another_takes_their_place(
    world: World,
) -> None:
    world.stream.append(submission(steps=1, prompts_per_step=1))
    evaluation = Evaluation(world)
    held_out = await evaluation.offered(0, body_split=common.SPLIT_HELD_OUT)
    of_a_run = await evaluation.offered(1, purpose=common.PURPOSE_TRAIN)
    other_task = await evaluation.offered(2, said_digest="digest-9")
    lost = await evaluation.offer(3)
    lost.members[5].body.key = "trajectory/gone"
    world.stream.append(lost)
    claimed = await evaluation.offered(4, body_split=common.SPLIT_UNASSIGNED)
    async with Trainer(world):
        for group in (held_out, of_a_run, other_task, lost.group_id):
            fact = await answer(world, group)
            assert (fact.outcome, fact.reason, len(fact.episode_ids)) == ("released", "quarantined", 8)
        assert (await answer(world, claimed)).outcome == "trained"


async def test_a_group_that_was_measured_greedily_is_released_as_untrainable(world: World) -> None:
    world.stream.append(submission(steps=1, prompts_per_step=1))
    fact = await Evaluation(world).offer(0)
    body = Episodes(world, EVALUATION, 8).body(0, 3, purpose=common.PURPOSE_EVAL)
    body.temperature = 0.0
    ref = await world.store.put(body_key(EVALUATION, body.episode.episode_id), pack(body))
    fact.members[3].body.CopyFrom(common.BlobRef(key=ref.key, sha256=ref.sha256, size_bytes=ref.size_bytes))
    world.stream.append(fact)
    async with Trainer(world):
        assert (await answer(world, fact.group_id)).reason == "untrainable"


async def test_versions_before_the_start_count_back_from_the_base(world: World) -> None:
    """v0 <- v1 <- v2, head; v3 is another line, so the run begins as v4. There a rollout of v2 is fresh, one
    of v1 is one version old, and one of v0 is older than the run allows."""
    await publish_child(world, 1, 0)
    await publish_child(world, 2, 1)
    head = world.heads[MODEL]
    await publish_child(world, 3, 0)
    world.heads[MODEL] = head
    world.stream.append(submission(steps=2, prompts_per_step=2, max_staleness=1))
    evaluation = Evaluation(world)
    groups = [
        await evaluation.offered(index, version=version, before_start=True)
        for index, version in enumerate((0, 1, 2, 3, 1, 2))
    ]
    async with Trainer(world) as trainer:
        answers = [await answer(world, group) for group in groups[:5]]
        session = trainer.sessions.get(RUN)
        assert session.state is not None
        assert (session.state.base.version, session.state.first_version) == (2, 4)
        step = await world.published(f"step.completed/{RUN}/1")
    found = [(one.outcome, one.reason) for one in answers]
    # The fifth is of v1, which is two versions old once the run trains v5.
    assert found == [
        ("released", "version"),
        ("trained", ""),
        ("trained", ""),
        ("released", "version"),
        ("released", "stale"),
    ]
    assert dict(step.metrics.staleness) == {0: 8, 1: 8}
    assert step.metrics.values["staleness_max"] == 1.0


async def test_versions_of_a_running_evaluation_are_those_of_the_run(world: World) -> None:
    await publish_child(world, 1, 0)
    world.stream.append(submission(steps=3, prompts_per_step=1, max_staleness=1))
    evaluation = Evaluation(world)
    ancestor = await evaluation.offered(0, version=0)
    base = await evaluation.offered(1, version=1)
    async with Trainer(world):
        assert (await answer(world, ancestor)).reason == "version"
        assert (await answer(world, base)).step == 1
        own = await evaluation.offered(2, version=2)
        assert (await answer(world, own)).step == 2
        old = await evaluation.offered(3, version=1)
        assert (await answer(world, old)).reason == "stale"


async def test_rollouts_of_another_tokenizer_are_released(world: World) -> None:
    await publish_child(world, 1, 0, tokenizer='{"other": 1}')
    world.stream.append(submission(steps=1, prompts_per_step=1))
    async with Trainer(world):
        fact = await answer(world, await Evaluation(world).offered(0, version=0, before_start=True))
    assert (fact.outcome, fact.reason) == ("released", "tokenizer")


async def test_the_line_of_versions_is_the_same_after_a_restart_though_manifests_went(world: World) -> None:
    await publish_child(world, 1, 0)
    world.stream.append(submission(steps=1, prompts_per_step=2))
    async with Trainer(world) as trainer:
        await until(
            lambda: trainer.sessions.all and trainer.sessions.get(RUN).phase is not SessionPhase.OPENING,
            timeout_s=60,
        )
    del world.store.objects[f"default/policies/{MODEL}/v00000000/manifest.json"]  # version 1 shares its files
    groups = await Evaluation(world).all_offered(range(2), version=0, before_start=True)
    async with Trainer(world):
        assert [(await answer(world, group)).outcome for group in groups] == ["trained"] * 2


async def test_an_early_end_releases_what_was_offered_before_it_and_ignores_the_rest(world: World) -> None:
    world.stream.append(submission(steps=0, prompts_per_step=2, checkpoint_every_steps=50))
    evaluation = Evaluation(world)
    trained = await evaluation.all_offered(range(2))
    left = await evaluation.offered(2)
    async with Trainer(world) as trainer:
        await answer(world, trained[1])
        world.stream.append(stopping())
        late = await evaluation.offered(3)
        fact = await answer(world, left)
        assert (fact.outcome, fact.reason, fact.source_run_id) == ("released", "run_over", EVALUATION)
        world.stream.append(over())
        await until_closed(world)
        assert dict(views.find(trainer.sessions, RUN).settled) == {"trained": 2, "released(run_over)": 1}
    assert settled_id(late) not in world.recorder.events
    (saved,) = world.recorder.of(events.CheckpointSaved)
    assert (saved.step, saved.is_final, dict(saved.sources)) == (1, True, {EVALUATION: 2})
    async with Trainer(world) as trainer:  # an earlier process's run is shown as it ended
        assert dict((await views.stored(trainer.sessions, RUN)).sources) == {EVALUATION: 2}


async def test_a_run_that_took_its_last_step_answers_no_offer(world: World) -> None:
    world.stream.append(submission(steps=1, prompts_per_step=1))
    evaluation = Evaluation(world)
    await evaluation.offered(0)
    async with Trainer(world) as trainer:
        await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v00000001")
        await until(lambda: trainer.sessions.get(RUN).phase is SessionPhase.FINISHED, timeout_s=60)
        late = [await evaluation.offered(1), await evaluation.offered(2, (1.0,) * 8)]
        world.stream.append(over())
        await until_closed(world)
    assert not {settled_id(one) for one in late} & set(world.recorder.events)


async def test_a_run_without_a_limit_trains_until_it_is_stopped(world: World) -> None:
    world.stream.append(submission(steps=0, prompts_per_step=1, checkpoint_every_steps=2, max_staleness=9))
    await Episodes(world).groups(range(5))
    async with Trainer(world) as trainer:
        published = await world.published(f"policy.published/default/{MODEL}/5")
        assert views.find(trainer.sessions, RUN).target_steps == 0
        world.stream.append(stopping())
        world.stream.append(over())
        await until_closed(world)
    assert (published.target_steps, published.step) == (0, 5)
    saved = [(one.step, one.is_final) for one in world.recorder.of(events.CheckpointSaved)]
    assert saved == [(2, False), (4, False), (5, True)]


async def test_a_step_with_offered_groups_is_void_where_the_planner_released_them_first(world: World) -> None:
    gate = Gate()
    world.stream.append(submission(steps=3, checkpoint_every_steps=1))
    groups = await Evaluation(world).all_offered(range(2))
    async with Trainer(world, change=slowly(gate)):
        await asyncio.wait_for(gate.reached.wait(), 60)
        world.stream.append(cancelled(is_final=True))
        for group in groups:
            fact = events.GroupSettled(
                group_id=group,
                run_id=RUN,
                model=MODEL,
                outcome="released",
                reason="run_over",
                source_run_id=EVALUATION,
            )
            world.recorder.decided_by_another(fact, settled_id(group))
        world.stream.append(over())
        gate.open.set()
        await until_closed(world)
    assert any(key.endswith(MARKER) for key in world.store.objects)
    assert {one.outcome for one in world.recorder.of(events.GroupSettled)} == {"released"}
    for kind in (events.StepCompleted, events.PolicyPublished, events.CheckpointSaved):
        assert not world.recorder.of(kind)


async def test_a_settlement_of_the_same_group_by_another_run_does_not_void_a_step(world: World) -> None:
    """A group that one run released may train in another."""
    group = Evaluation(world).group_id(0)
    fact = events.GroupSettled(
        group_id=group, run_id=OTHER, model=MODEL, outcome="released", source_run_id=EVALUATION
    )
    world.recorder.decided_by_another(fact, f"group.settled/{OTHER}/{group}")
    world.stream.append(submission(steps=1, prompts_per_step=1))
    await Evaluation(world).offered(0)
    async with Trainer(world):
        assert (await answer(world, group)).outcome == "trained"
        await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v00000001")
    trained_once(world)


def test_released_groups_are_counted_by_outcome_and_reason() -> None:
    labels = {"model": "counted", "outcome": "released", "reason": "zero_spread"}
    settlement = Settlement("g", GroupOutcome.RELEASED, GroupReason.ZERO_SPREAD, (), source_run_id=EVALUATION)
    TrainerInstruments().count_settled(TrainingSpec(RUN, "counted", 4), settlement)
    assert REGISTRY.get_sample_value("upcycle_trainer_groups_total", labels) == 1.0
