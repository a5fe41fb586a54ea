"""Recorded sessions that are alone in their group: taken where the run asks for it, compared by the step."""

from __future__ import annotations

import dataclasses

import pytest
from tests.services.grpo_trainer.bench import MODEL, RUN, Trainer, World, submission
from tests.services.grpo_trainer.evaluations import Evaluation, settled_id
from tests.services.grpo_trainer.fakes import START
from tests.services.grpo_trainer.runs.test_groups import SPEC, member
from tests.services.grpo_trainer.runs.test_offer_edges import compared

from episodes import GroupReason
from grpo_trainer.domain.offers import Lineage, OfferedGroup, OfferRules
from grpo_trainer.domain.steps import StepPlan
from grpo_trainer.domain.trajectories import CompleteGroup, Settlement
from grpo_trainer.learner.rows import Credit, batch_rows
from grpo_trainer.learner.torch_learner import credit_of
from grpo_trainer.runs.batches import BatchCutter

SESSIONS = "sessions-key1"
ALONE = dataclasses.replace(SPEC, prompts_per_step=2, single_sessions="batch")


def offered(source: str = SESSIONS, reward: float = 1.0) -> OfferedGroup:
    one = member(0, 1, reward=reward, group_size=1, offered=True, run_id=source)
    return OfferedGroup("g", source, 1, True, (one,), 1)


def judged(spec: object, group: OfferedGroup) -> GroupReason:
    found = OfferRules(spec, (), Lineage(0, 0)).judged(group)  # type: ignore[arg-type]
    return found.reason if isinstance(found, Settlement) else GroupReason.NONE


def test_a_single_session_is_taken_where_the_run_asks_for_it() -> None:
    assert judged(ALONE, offered()) is GroupReason.NONE
    assert judged(SPEC, offered()) is GroupReason.SHORT_GROUP
    assert judged(ALONE, offered("run-0000000000e1")) is GroupReason.SHORT_GROUP, "of an evaluation"


def single(name: str, reward: float) -> CompleteGroup:
    one = member(0, 1, group_id=name, reward=reward)
    return CompleteGroup(name, (one,), 1, SESSIONS)


def pair(name: str) -> CompleteGroup:
    return CompleteGroup(name, tuple(member(n, 1, group_id=name) for n in range(2)), 1)


def cut(*groups: CompleteGroup) -> BatchCutter:
    found = BatchCutter(ALONE)
    for one in groups:
        found.add(one)
    return found


def test_a_step_of_sessions_of_one_reward_teaches_nothing_and_is_not_taken() -> None:
    same = cut(single("a", 0.5), single("b", 0.5), single("c", 1.0)).cut(0)
    assert same.groups == ()
    assert [(one.group_id, one.reason, one.source_run_id) for one in same.tied] == [
        ("a", GroupReason.ZERO_SPREAD, SESSIONS),
        ("b", GroupReason.ZERO_SPREAD, SESSIONS),
    ]
    assert "all 2 single sessions of a step have reward 0.5" in same.tied[0].detail


@pytest.mark.parametrize("other", [single("b", 0.0), pair("b")])
def test_a_step_with_something_to_compare_is_taken(other: CompleteGroup) -> None:
    found = cut(single("a", 0.5), other).cut(0)
    assert ([one.group_id for one in found.groups], found.tied) == (["a", "b"], ())


def test_rows_of_single_sessions_have_the_mean_of_the_other_groups_as_baseline() -> None:
    """Rewards 1 and 0 alone, and a group of mean 1/2: 1 - (0 + 1/2)/2, and 0 - (1 + 1/2)/2."""
    groups = [compared("a", "a", (1.0,)), compared("b", "b", (0.0,)), compared("c", "c", (1.0, 0.0))]
    rows = batch_rows(groups, credit=credit_of(ALONE), group_size=2).rows
    assert {row.row_id: row.advantage for row in rows} == pytest.approx(
        {"a/0/0": 0.75, "b/0/0": -0.75, "c/0/0": 0.5, "c/1/0": -0.5}
    )
    without = batch_rows(groups, credit=Credit("dr_grpo"), group_size=2).rows
    assert [row.advantage for row in without] == [0.0, 0.0, 0.5, -0.5]


def test_a_step_says_how_many_single_sessions_it_had() -> None:
    def metrics(spec: object) -> dict[str, float]:
        plan = StepPlan(spec, 1, 0, (single("a", 0.5), pair("b")), 0.0, "")  # type: ignore[arg-type]
        return dict(plan.record({}, at=START, traceparent="").metrics)

    assert metrics(ALONE)["single_sessions"] == 1.0
    assert "single_sessions" not in metrics(SPEC)


async def test_sessions_of_one_reward_are_released_and_those_after_them_train(world: World) -> None:
    asked = submission(steps=1, checkpoint_every_steps=1, sessions="all", single_sessions="batch")
    world.stream.append(asked)
    sessions = Evaluation(world, SESSIONS, 1)
    tied = [await sessions.offered(index, (1.0,)) for index in (1, 2)]
    apart = [await sessions.offered(3, (1.0,)), await sessions.offered(4, (0.0,))]
    async with Trainer(world):
        await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v00000001")
        settled = [await world.published(settled_id(group)) for group in (*tied, *apart)]
        step = await world.published(f"step.completed/{RUN}/1")
    assert [(one.outcome, one.reason) for one in settled] == [("released", "zero_spread")] * 2 + [
        ("trained", "")
    ] * 2
    assert step.metrics.values["single_sessions"] == 2.0
    assert step.metrics.values["grad_norm"] > 0
