"""The environment changes under head: it goes back to its predecessor by itself, and no request fails."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.e2e.test_watched_head import moves
from tests.platform_recipes import (
    MODEL,
    REPOSITORY,
    addresses,
    register_incident,
    small_stack,
    small_training,
)
from tests.support.waiting import until

from local_demo.production import Production
from local_stack.stack import Stack
from upcycle.api.registry.v1.service_pb2 import GetHeadWatchRequest, GetHeadWatchResponse
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED, GateConfig
from upcycle.cli.tasksets import load_source
from upcycle.platform import Platform
from upcycle.rpc import RemoteNotFound
from upcycle.run_client import follow_run, submit_run
from upcycle.train import Conversation, StepResult, TrainingClient

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.study,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

FOUND_WITHIN_S = 600
WATCHED_PAIRS = 50
"""Then the watch rests for an hour, so that the environment changes while it does not look."""
QUESTION = "which service?"
NOW, LATER = "cart", "feed"
"""What the service at fault is called: before the edit, and after it."""
ENVIRONMENT = f'''"""One question, and the name of a service as its answer."""

from upcycle import Environment, Taskset

env = Environment("renamed")
AT_FAULT = "{NOW}"


@env.scenario("name")
async def name(ticket: int):
    """The name of the service at fault."""
    answer = yield "{QUESTION}"
    yield float(answer.strip() == AT_FAULT)


held_out = Taskset("names", [name.task(ticket=ticket) for ticket in range(12)], "held_out")
'''


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its file, which the test edits."""
    file = tmp_path_factory.mktemp("renamed") / "env.py"
    file.write_text(ENVIRONMENT, encoding="utf-8")
    return file


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory, environment: Path) -> AsyncIterator[Stack]:
    """A platform whose registry watches head, and which may load the environment."""
    env = {"CHECKPOINT_REGISTRY_WATCH_PAIRS": str(WATCHED_PAIRS)}
    roots = REPOSITORY, environment.parent
    async with small_stack(tmp_path_factory.mktemp("changed"), extra_env=env, roots=roots) as running:
        await register_incident(running)
        async with Platform(addresses(running)) as platform:
            await load_source(str(environment), "names").register(platform)
        yield running


async def gated_once(platform: Platform) -> None:
    """The watch plays the tasks of the newest gate: a run of one step has one."""
    spec = small_training(steps=1)
    spec.gate.CopyFrom(GateConfig(taskset="names", attempts=1))
    run = await submit_run(platform, spec)
    run = await follow_run(platform, run.run_id, timeout_s=300)
    assert run.state == RUN_STATE_COMPLETED, run.failure


async def taught(trainer: TrainingClient, answer: str) -> StepResult:
    """A checkpoint that says this, made head by a person."""
    said = Conversation([{"role": "user", "content": QUESTION}, {"role": "assistant", "content": answer}])
    for _ in range(30):
        await trainer.step([said], learning_rate=1e-3, loss_fn="cross_entropy", persist="none")
    saved = await trainer.step([said], learning_rate=1e-4, loss_fn="cross_entropy", promote=False)

    async def is_head() -> bool:
        try:
            await trainer.set_head(saved.checkpoint_id, reason=f"it says {answer}")
        except RemoteNotFound:  # the registry has not heard of it yet
            return False
        return True

    await until(is_head, f"the checkpoint that says {answer} to become head", timeout_s=60)
    return saved


def edit(environment: Path) -> None:
    """The service is called otherwise from now on."""
    text = environment.read_text(encoding="utf-8")
    environment.write_text(text.replace(f'AT_FAULT = "{NOW}"', f'AT_FAULT = "{LATER}"'), encoding="utf-8")


async def watch(platform: Platform) -> GetHeadWatchResponse:
    """What the watch of head played."""
    return await platform.registry.GetHeadWatch(GetHeadWatchRequest(model=MODEL), timeout=10)


async def test_a_head_whose_environment_changes_goes_back_and_production_goes_on(
    stack: Stack, environment: Path
) -> None:
    where = addresses(stack)
    trainer = TrainingClient(MODEL, runtime=where)
    async with Platform(where) as platform:
        await gated_once(platform)
        before = await taught(trainer, LATER)
        head = await taught(trainer, NOW)
        app = Production(
            where.gateway_url, where.gateway_key(), MODEL, [{"role": "user", "content": QUESTION}]
        )
        await app.start()

        async def has_played() -> bool:
            seen = await watch(platform)
            return seen.head_version == head.version and seen.pairs >= WATCHED_PAIRS

        await until(has_played, "the pairs of head in its first environment", timeout_s=FOUND_WITHIN_S)
        won = await watch(platform)
        assert won.better > 0.9 * won.pairs, "head is the better one, before the edit"
        num_moves = len(await moves(platform))
        edit(environment)

        async def is_back() -> bool:
            return len(await moves(platform)) > num_moves

        await until(is_back, "the rollback of a head whose environment changed", timeout_s=FOUND_WITHIN_S)
        last = (await moves(platform))[-1]
        assert (last.actor, last.to_checkpoint_id) == ("gate", before.checkpoint_id), last
        assert "drawn pairs that its changed environment (source " in last.reason, last.reason
        assert ": worse in " in last.reason, last.reason
        seen_at = app.requests
        await until(lambda: app.requests > seen_at + 4, "requests after the rollback", timeout_s=60)
        answer = await app.ask()
        await app.stop()
    assert app.failures == []
    assert head.version in app.first_answers, "the head that turned bad was served"
    assert answer.version == before.version
