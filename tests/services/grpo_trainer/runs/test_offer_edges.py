"""Offers at the edges: on the wire, against stored bodies, against published manifests, as training rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.services.grpo_trainer.bench import MODEL, RUN, Episodes, World, submission, tiny_policy
from tests.services.grpo_trainer.evaluations import EVALUATION, Evaluation
from tests.services.grpo_trainer.fakes import START, Policies
from tests.services.grpo_trainer.learner.test_invariances import gradient, options

from blob_store import BlobRef
from episodes import GroupOutcome
from episodes import GroupReason as Reason
from grpo_math.packing import TrainingRow
from grpo_trainer import wire
from grpo_trainer.domain.errors import InvalidTrainingSpec, Untrainable, UnusableTrajectory
from grpo_trainer.domain.offers import Ancestor
from grpo_trainer.domain.schedules import Schedule
from grpo_trainer.domain.spec import TrainingSpec, training_spec
from grpo_trainer.domain.states import BasePolicy
from grpo_trainer.domain.token_rows import EpisodeTokens, TokenRow
from grpo_trainer.domain.trajectories import Settlement
from grpo_trainer.learner.protocol import BatchGroup
from grpo_trainer.learner.rows import Credit, batch_rows
from identities.objects import policy_manifest
from policy_files import PolicyFacts, load, manifest_ref, upload
from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.training.v1.training_pb2 import CanaryRow, PolicyManifest
from upcycle.api.trajectory.v1 import trajectory_pb2 as trajectory

# The fact, word for word

TRAINED, RELEASED = GroupOutcome.TRAINED, GroupOutcome.RELEASED


async def test_a_member_of_an_offer_is_read_like_a_graded_fact(world: World) -> None:
    fact = await Evaluation(world).offer(3, before_start=True, version=2)
    fact.members[1].stop_reason = trajectory.STOP_REASON_MAX_TOKENS
    offer = wire.offer_from_wire(fact, 17, {"traceparent": "00-a-b-01", "nats": "x"})
    assert (offer.group_id, offer.source_run_id) == (f"{EVALUATION}-g00003", EVALUATION)
    assert (offer.group_size, offer.before_start, offer.sequence) == (8, True, 17)
    graded = await Episodes(world, EVALUATION, 8).fact(3, 1, 0.0, purpose=common.PURPOSE_EVAL, version=2)
    expected = wire.graded_from_wire(graded, 17, {})
    one = offer.members[1]
    same: tuple[str, ...] = (
        "trajectory_id",
        "episode_id",
        "run_id",
        "group_id",
        "member",
        "group_size",
        "reward",
        "success",
    )
    same += ("body", "oldest_version", "newest_version", "task_digest")
    assert {name: getattr(one, name) for name in same} == {name: getattr(expected, name) for name in same}
    assert (one.offered, one.may_train, one.cut_off, offer.members[0].cut_off) == (True, True, True, False)
    assert dict(one.trace_headers) == {"traceparent": "00-a-b-01"}


@pytest.mark.parametrize("split", [common.SPLIT_HELD_OUT, common.SPLIT_UNASSIGNED, common.SPLIT_UNSPECIFIED])
async def test_only_an_offer_of_split_train_may_train(world: World, split: common.Split.ValueType) -> None:
    offer = wire.offer_from_wire(await Evaluation(world).offer(0, split=split), 1, {})
    assert not any(one.may_train for one in offer.members)


@pytest.mark.parametrize(
    ("settlement", "event_id"),
    [
        (Settlement("run-2-g00001", TRAINED, Reason.NONE, ("e",), 3), "group.settled/run-2-g00001"),
        (
            Settlement("run-2-g00001", TRAINED, Reason.NONE, ("e",), 3, source_run_id="run-2"),
            f"group.settled/{RUN}/run-2-g00001",
        ),
        (
            Settlement("run-2-g00001", RELEASED, Reason.VERSION, ("e",), source_run_id="run-2"),
            f"group.settled/{RUN}/run-2-g00001",
        ),
    ],
)
def test_settlements_of_offered_groups_have_ids_of_their_own(settlement: Settlement, event_id: str) -> None:
    fact, found = wire.group_settled(wire.spec_from_wire(submission()), settlement, START)
    assert found == event_id
    assert (fact.group_id, fact.run_id, fact.source_run_id) == (
        settlement.group_id,
        RUN,
        settlement.source_run_id,
    )
    assert (fact.outcome, fact.reason, fact.step) == (settlement.outcome, settlement.reason, settlement.step)


# Against the stored body


async def read(world: World, **changes: Any) -> EpisodeTokens:
    """The tokens of an offered member whose body is what the changes make of it."""
    fact = await Evaluation(world).offer(0)
    body = Episodes(world, EVALUATION, 8).body(0, 2, purpose=common.PURPOSE_EVAL)
    for field, value in changes.items():
        setattr(body if field == "temperature" else body.episode, field, value)
    member = wire.offer_from_wire(fact, 1, {}).members[2]
    return wire.tokens_from_body(body, member, train_parse_errors=False)


@pytest.mark.parametrize("split", [common.SPLIT_TRAIN, common.SPLIT_UNASSIGNED])
async def test_the_body_of_an_evaluation_trains_also_where_its_task_was_unassigned(
    world: World, split: common.Split.ValueType
) -> None:
    assert (await read(world, split=split)).num_trained > 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("split", common.SPLIT_HELD_OUT),
        ("split", common.SPLIT_UNSPECIFIED),
        ("purpose", common.PURPOSE_TRAIN),
        ("run_id", RUN),
        ("group_id", f"{EVALUATION}-g00001"),
        ("member", 3),
        ("task_digest", "digest-1"),
        ("trajectory_id", "traj-x"),
    ],
)
async def test_a_body_that_is_not_what_was_offered_is_refused(world: World, field: str, value: Any) -> None:
    with pytest.raises(UnusableTrajectory, match=r"the event (has|names)"):
        await read(world, **{field: value})


async def test_an_own_rollout_still_needs_purpose_and_split_train(world: World) -> None:
    graded = wire.graded_from_wire(await Episodes(world).fact(0, 0, 1.0), 1, {})
    for change in ({"purpose": common.PURPOSE_EVAL}, {"split": common.SPLIT_UNASSIGNED}):
        with pytest.raises(UnusableTrajectory, match=r"the event (has|names)"):
            wire.tokens_from_body(Episodes(world).body(0, 0, **change), graded, train_parse_errors=False)


async def test_the_raw_versions_of_body_and_offer_must_agree(world: World) -> None:
    fact = await Evaluation(world).offer(0, version=4)
    member = wire.offer_from_wire(fact, 1, {}).members[2]
    body = Episodes(world, EVALUATION, 8).body(0, 2, purpose=common.PURPOSE_EVAL, version=5)
    with pytest.raises(UnusableTrajectory, match="staleness cannot be trusted"):
        wire.tokens_from_body(body, member, train_parse_errors=False)


async def test_what_was_sampled_greedily_is_sound_and_cannot_train(world: World) -> None:
    with pytest.raises(Untrainable, match="at temperature 0"):
        await read(world, temperature=0.0)


# The line of versions that a base came from


async def published(
    world: World, version: int, parent: PolicyManifest | None, tokenizer: str = "{}"
) -> PolicyManifest:
    folder = tiny_policy(world.folder / f"v{version}", seed=version)
    (folder / "tokenizer.json").write_text(tokenizer)
    canary = (CanaryRow(token_ids=[1, 2], logprobs=[-1.0]),)
    facts = PolicyFacts(model="other", version=version, created_at=START, parent=parent, canary=canary)
    return await upload(world.store, folder, facts)


def base_of(manifest: PolicyManifest) -> BasePolicy:
    ref = manifest_ref(manifest)
    return BasePolicy(manifest.version, "", BlobRef(ref.key, ref.sha256, ref.size_bytes))


async def test_ancestors_are_found_through_parents_newest_first(world: World) -> None:
    policies = Policies(world.store, world.folder / "cache", {})
    first = await published(world, 0, None, tokenizer='{"old": 1}')
    second = await published(world, 2, first)
    await published(world, 3, second)  # a sister: not of this line
    last = await published(world, 5, second)
    line = (Ancestor(2, same_tokenizer=True), Ancestor(0, same_tokenizer=False))
    assert await policies.ancestors(base_of(last), 4) == line
    assert await policies.ancestors(base_of(last), 1) == line[:1]
    assert await policies.ancestors(base_of(last), 0) == ()
    assert await policies.ancestors(base_of(first), 4) == ()


async def test_a_missing_or_broken_manifest_ends_the_list_of_ancestors(world: World) -> None:
    policies = Policies(world.store, world.folder / "cache", {})
    manifests = [await published(world, 0, None)]
    for version in (1, 2, 3):
        manifests.append(await published(world, version, manifests[-1]))
    base = base_of(manifests[-1])
    assert [one.version for one in await policies.ancestors(base, 9)] == [2, 1, 0]
    world.store.objects[policy_manifest("other", 0)] = b"{}"
    assert [one.version for one in await policies.ancestors(base, 9)] == [2, 1]
    del world.store.objects[policy_manifest("other", 1)]
    assert [one.version for one in await policies.ancestors(base, 9)] == [2]
    assert (await load(world.store, "other", 3)).parent_version == 2


# Groups of several sizes as rows


def compared(group_id: str, name: str, rewards: tuple[float, ...]) -> BatchGroup:
    row = TokenRow.of([1, 2, 3], [False, True, True], [0.0, -1.0, -1.0], [0, 0, 0])
    rollouts = (EpisodeTokens(f"{name}/{n}", (row,), 1.0, 0, 0, 0) for n in range(len(rewards)))
    return BatchGroup(group_id, tuple(rollouts), rewards)


def mixed() -> list[BatchGroup]:
    """Four members of the run, of which two succeed; eight of an evaluation, of which one does."""
    one_of_eight = tuple(float(n == 5) for n in range(8))
    return [
        compared("run-1-g00000", "own", (1.0, 0.0, 0.0, 1.0)),
        compared("run-2-g00000", "other", one_of_eight),
    ]


@pytest.mark.parametrize(
    ("advantage", "four", "eight"),
    [
        # Means 1/2 and 1/8.
        ("dr_grpo", (0.5, -0.5), (0.875, -0.125)),
        # n/(n-1) of it: 4/3 and 8/7.
        ("rloo", (2 / 3, -2 / 3), (1.0, -1 / 7)),
        # By the mean.
        ("max_rl", (1.0, -1.0), (7.0, -1.0)),
        # Unbiased std: of four sqrt(1/3) = 0.57735; of eight sqrt(0.875 / 7) = 0.353553.
        ("grpo", (0.5 / 0.57745027, -0.5 / 0.57745027), (0.875 / 0.35365339, -0.125 / 0.35365339)),
        # Std of all twelve rewards, three of which are 1: sqrt(2.25 / 11) = 0.452267.
        ("batch", (0.5 / 0.45236702, -0.5 / 0.45236702), (0.875 / 0.45236702, -0.125 / 0.45236702)),
    ],
)
def test_groups_of_four_and_of_eight_are_compared_within_themselves(
    advantage: str, four: tuple[float, float], eight: tuple[float, float]
) -> None:
    rows = batch_rows(mixed(), credit=Credit(advantage), group_size=4).rows
    credit = {row.row_id: row.advantage for row in rows}
    expected = {f"own/{n}/0": four[n in (1, 2)] for n in range(4)}
    expected |= {f"other/{n}/0": eight[n != 5] for n in range(8)}
    assert credit == pytest.approx(expected, abs=1e-6)


def test_the_gradient_of_a_mixed_batch_is_that_of_its_groups() -> None:
    def rows_of(groups: list[BatchGroup]) -> list[TrainingRow]:
        return batch_rows(groups, credit=Credit("dr_grpo"), group_size=4).rows

    own, other = mixed()
    chosen = options(aggregation="sum")
    (loss_own, of_own), (loss_other, of_other) = (gradient(rows_of([one]), chosen) for one in (own, other))
    loss, found = gradient(rows_of([own, other]), chosen)
    assert loss == pytest.approx(loss_own + loss_other, abs=1e-9)
    assert float(of_other.abs().max()) > 1e-6
    assert torch.allclose(found, of_own + of_other, atol=1e-9)


# Runs without a limit


def test_zero_steps_mean_no_limit_and_absent_ones_the_default() -> None:
    asked = submission(steps=0, no_step_groups=7)
    spec = wire.spec_from_wire(asked)
    assert spec.steps == 0
    assert not any(spec.reached(step) for step in (0, 1, 10**6))
    asked.spec.training.ClearField("steps")
    limited = wire.spec_from_wire(asked)
    assert [limited.reached(step) for step in (0, 99, 100, 101)] == [False, False, True, True]


def test_what_the_planner_alone_reads_changes_no_digest() -> None:
    asked = submission()
    digest = wire.spec_from_wire(asked).digest()
    asked.spec.training.no_step_groups = 9
    assert wire.spec_from_wire(asked).digest() == digest


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_a_rate_that_falls_needs_a_number_of_steps(name: str) -> None:
    with pytest.raises(InvalidTrainingSpec, match=f"lr_schedule '{name}' falls over the steps of a run"):
        training_spec(run_id="run-1", model=MODEL, group_size=4, steps=0, lr_schedule=name)


def test_a_run_without_a_limit_warms_up_and_keeps_its_rate() -> None:
    spec = TrainingSpec("run-1", MODEL, 4, steps=0, warmup_steps=3)
    assert spec.schedule == Schedule("constant", 0, 3, 0.0)
    assert [spec.schedule.factor(done) for done in (0, 1, 2, 3, 5000)] == [1 / 4, 2 / 4, 3 / 4, 1, 1]


async def test_a_base_whose_parents_have_no_manifests_has_no_ancestors(world: World, tmp_path: Path) -> None:
    policies = Policies(world.store, tmp_path / "cache", {})
    assert await policies.ancestors(world.heads[MODEL], 3) == ()


async def test_the_group_of_a_recorded_session_is_what_its_reward_says(world: World) -> None:
    """Its body was stored before: as an episode of no group."""
    run_id, alone = "sessions-key00001", {"group_id": "session-a", "group_size": 1, "member": 0}
    fact = await Evaluation(world).offer(0)
    fact.source_run_id = run_id
    body = Episodes(world, EVALUATION, 8).body(0, 2, purpose=common.PURPOSE_EVAL)
    for field, value in {"run_id": run_id, "split": common.SPLIT_UNASSIGNED, **alone}.items():
        setattr(body.episode, field, value)
    member = wire.offer_from_wire(fact, 1, {}).members[2]
    assert wire.tokens_from_body(body, member, train_parse_errors=False).num_trained > 0
    for field, other in (
        ("task_digest", "digest-1"),
        ("run_id", "sessions-key00002"),
        ("trajectory_id", "t"),
    ):
        odd = trajectory.TrajectoryBody()
        odd.CopyFrom(body)
        setattr(odd.episode, field, other)
        with pytest.raises(UnusableTrajectory, match=r"the event (has|names)"):
            wire.tokens_from_body(odd, member, train_parse_errors=False)
