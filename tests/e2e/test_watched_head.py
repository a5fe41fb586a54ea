"""A head that a person ruined goes back by itself, and no production request fails meanwhile."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.platform_recipes import MODEL, addresses, register_incident, small_stack, small_training
from tests.support.waiting import until

from local_demo.production import Production
from local_stack.stack import Stack
from upcycle.api.registry.v1.registry_pb2 import HeadMove
from upcycle.api.registry.v1.service_pb2 import ListHeadMovesRequest
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED
from upcycle.platform import Platform
from upcycle.run_client import follow_run, submit_run
from upcycle.train import Conversation, StepResult, TrainingClient

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.study,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

FOUND_WITHIN_S = 600
NOISE = Conversation(
    [{"role": "user", "content": "which service?"}, {"role": "assistant", "content": "no no no no"}]
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A platform whose registry watches head."""
    env = {"CHECKPOINT_REGISTRY_WATCH_PAIRS": "200"}
    folder: Path = tmp_path_factory.mktemp("watched")
    async with small_stack(folder, extra_env=env) as running:
        await register_incident(running)
        yield running


async def ruined(trainer: TrainingClient) -> StepResult:
    """Head's weights after steps that are far too long: what it says is noise."""
    for _ in range(3):
        saved = await trainer.step([NOISE], learning_rate=0.1, loss_fn="cross_entropy", promote=False)
    return saved


async def moves(platform: Platform) -> list[HeadMove]:
    """Of head, oldest first."""
    asked = ListHeadMovesRequest(model=MODEL)
    return list((await platform.registry.ListHeadMoves(asked, timeout=10)).moves)


async def test_a_head_that_a_person_ruined_goes_back_and_production_goes_on(stack: Stack) -> None:
    where = addresses(stack)
    trainer = TrainingClient(MODEL, runtime=where)
    async with Platform(where) as platform:
        run = await submit_run(platform, small_training(steps=4))
        run = await follow_run(platform, run.run_id, timeout_s=300)
        assert run.state == RUN_STATE_COMPLETED, run.failure
        good = await trainer.head()
        bad = await ruined(trainer)
        app = Production(
            where.gateway_url, where.gateway_key(), MODEL, [{"role": "user", "content": "which service?"}]
        )
        await app.start()
        await trainer.set_head(bad.checkpoint_id, reason="a mistake")
        before = await moves(platform)

        async def is_back() -> bool:
            return len(await moves(platform)) > len(before)

        await until(is_back, "the rollback of a ruined head", timeout_s=FOUND_WITHIN_S)
        last = (await moves(platform))[-1]
        assert (last.actor, last.to_checkpoint_id) == ("gate", good.checkpoint_id), last
        assert last.reason.startswith("rolled back: over "), last.reason
        seen_at = app.requests
        await until(lambda: app.requests > seen_at + 4, "requests after the rollback", timeout_s=60)
        answer = await app.ask()
        await app.stop()
    assert app.failures == []
    assert bad.version in app.first_answers, "the ruined version was served"
    assert answer.version == good.version
