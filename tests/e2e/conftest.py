"""One real platform for all end-to-end tests: real processes, real bus, real store, a real policy."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from tests.platform_recipes import addresses, register_incident, small_stack
from tests.support.judges import judging
from tests.support.model_servers import KEY, ModelServerDouble, serving

from local_stack.stack import Stack
from upcycle.platform import Platform


@pytest.fixture(scope="session")
def judge() -> Iterator[ModelServerDouble]:
    """A model that judges: of two criteria it finds the first met."""
    with serving(judging(True, False)) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory, judge: ModelServerDouble) -> AsyncIterator[Stack]:
    """All processes, ready, with the incident policy and tasksets, and a judge."""
    asks = {"URL": f"{judge.url}/v1", "MODEL": "wise-1", "KEY": KEY}
    env = {f"REWARD_GRADER_JUDGE_{name}": value for name, value in asks.items()}
    async with small_stack(tmp_path_factory.mktemp("stack"), extra_env=env) as running:
        await register_incident(running)
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def platform(stack: Stack) -> AsyncIterator[Platform]:
    """A client of the stack's public APIs."""
    async with Platform(addresses(stack)) as client:
        yield client
