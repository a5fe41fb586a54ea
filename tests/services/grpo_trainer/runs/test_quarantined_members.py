"""A trajectory that the store sets aside takes its group out of training, as long as it has not trained."""

from __future__ import annotations

import pytest
from tests.services.grpo_trainer.bench import MIXED, RUN, Episodes, Trainer, World, submission

from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded, TrajectoryQuarantined

REASON = "reward hack: it changed what graders read"


def aside(fact: TrajectoryGraded) -> TrajectoryQuarantined:
    return TrajectoryQuarantined(episode=fact.episode, reason=REASON)


@pytest.mark.parametrize("place", [1, 4], ids=["before its group is whole", "while its group waits"])
async def test_the_group_is_excluded_and_others_train(world: World, place: int) -> None:
    world.stream.append(submission(steps=1))
    facts = await Episodes(world).facts(0, MIXED)
    for fact in [*facts[:place], aside(facts[0]), *facts[place:]]:
        world.stream.append(fact)
    await Episodes(world).groups([1, 2])
    async with Trainer(world):
        excluded = await world.settled(f"{RUN}-g00000")
        trained = [await world.settled(f"{RUN}-g{index:05d}") for index in (1, 2)]
    assert (excluded.outcome, excluded.reason) == ("excluded", "quarantined")
    assert [one.outcome for one in trained] == ["trained", "trained"]


async def test_a_group_that_trained_stays_trained(world: World) -> None:
    world.stream.append(submission(steps=2, prompts_per_step=1))
    facts = await Episodes(world).facts(0, MIXED)
    for fact in facts:
        world.stream.append(fact)
    async with Trainer(world):
        assert (await world.settled(f"{RUN}-g00000")).outcome == "trained"
        world.stream.append(aside(facts[0]))
        await Episodes(world).group(1, MIXED)
        assert (await world.settled(f"{RUN}-g00001")).outcome == "trained"
