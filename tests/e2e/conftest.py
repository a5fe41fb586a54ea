"""One real platform for all end-to-end tests: real processes, real bus, real store, a real policy."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.platform_recipes import addresses, register_incident, small_stack

from local_stack.stack import Stack
from upcycle.platform import Platform


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """All processes, ready, with the incident policy and tasksets."""
    async with small_stack(tmp_path_factory.mktemp("stack")) as running:
        await register_incident(running)
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def platform(stack: Stack) -> AsyncIterator[Platform]:
    """A client of the stack's public APIs."""
    async with Platform(addresses(stack)) as client:
        yield client
