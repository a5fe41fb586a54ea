"""What a trainer says, and keeps, of runs that another trainer holds, and of runs that it never knew."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from tests.services.grpo_trainer.bench import RUN, Episodes, Trainer, World, submission
from tests.services.grpo_trainer.runs.test_reopening import LAST, STEPS
from tests.support.waiting import until

from grpo_trainer.domain.errors import UnknownSession
from grpo_trainer.servicer import TrainingServicer
from identities.objects import training_states
from upcycle.api.training.v1 import service_pb2 as service
from upcycle.errors import Unavailable

CALL: Final[Any] = SimpleNamespace(invocation_metadata=tuple)


def served(trainer: Trainer) -> TrainingServicer:
    """The service of a trainer without interactive sessions."""
    without: Any = SimpleNamespace(views=list)
    return TrainingServicer(trainer.sessions, without)


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """Nothing is submitted yet."""
    made = World(tmp_path)
    await made.publish_base()
    return made


def submit(world: World) -> None:
    world.stream.append(
        submission(steps=STEPS, prompts_per_step=1, max_staleness=9, checkpoint_every_steps=9)
    )


async def test_a_run_that_another_trainer_began_holds_no_cursor_back(world: World) -> None:
    """Both read its run.submitted; one trains it. The other one's runs must not be replayed from there."""
    async with Trainer(world) as left, Trainer(world) as right:
        submit(world)
        await until(lambda: any(one.sessions.all for one in (left, right)), timeout_s=60)
        for one in (left, right):
            await until(lambda one=one: one.sessions.watermark.bound >= 1, "the bound", timeout_s=60)  # type: ignore[misc]


async def test_a_run_that_no_trainer_began_holds_every_cursor_back(world: World) -> None:
    async with Trainer(world, change=without_claims) as trainer:
        submit(world)
        await until(lambda: trainer.sessions.watermark.handled >= 1, timeout_s=60)
        assert trainer.sessions.watermark.bound == 0


def without_claims(deps: Any) -> Any:
    async def away(*_: Any, **__: Any) -> None:
        raise Unavailable("the object store")

    vars(deps.states)["claim"] = away
    return deps


async def test_a_holder_that_does_not_answer_is_not_answered_for(world: World) -> None:
    """The planner would take the answer of a trainer that knows nothing for that of one that has nothing."""
    asked = service.GetSessionRequest(run_id=RUN)
    async with Trainer(world) as left:
        left.sessions.holding.address = lambda: "127.0.0.1:1"
        submit(world)
        await until(lambda: left.sessions.all, timeout_s=60)
        async with Trainer(world) as right:
            await until(lambda: right.sessions.holder_of(RUN) is not None, timeout_s=60)
            with pytest.raises(Unavailable, match=f"{left.sessions.holding.name}.*which holds run {RUN}"):
                await served(right).GetSession(asked, CALL)
            assert (await served(left).GetSession(asked, CALL)).session.run_id == RUN


async def test_a_run_that_no_service_knows_is_unknown_without_a_listing_of_all_runs(world: World) -> None:
    listed = world.store.list

    async def refused(prefix: str) -> Any:
        assert prefix != training_states(), "every run that ever trained"
        return await listed(prefix)

    async with Trainer(world) as trainer:
        await until(lambda: trainer.sessions.watermark.handled == 0)
        vars(world.store)["list"] = refused
        with pytest.raises(UnknownSession, match="run-unknown"):
            await served(trainer).GetSession(service.GetSessionRequest(run_id="run-unknown"), CALL)


async def test_a_run_of_the_past_is_shown_from_its_folder(world: World) -> None:
    submit(world)
    await Episodes(world).groups(range(STEPS))
    async with Trainer(world):
        await world.published(LAST)
    world.stream.facts.clear()
    async with Trainer(world) as trainer:
        trainer.sessions.end(RUN, 0, saves=True)
        await until(lambda: not trainer.sessions.not_over, timeout_s=60)
    async with Trainer(world) as trainer:
        reply = await served(trainer).GetSession(service.GetSessionRequest(run_id=RUN), CALL)
        assert reply.session.step == STEPS
