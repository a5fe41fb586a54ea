"""One real platform for all end-to-end tests: real processes, real bus, real store, a real policy."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.platform_recipes import MODEL, POLICY_DIR, REPOSITORY, addresses, register_incident

from local_stack import Stack, StackSettings
from upcycle.platform import Platform


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """All processes, ready, with the incident policy and tasksets."""
    settings = StackSettings(
        data_dir=Path(tmp_path_factory.mktemp("stack")),
        model=MODEL,
        model_dir=POLICY_DIR,
        environment_roots=(REPOSITORY,),
        ephemeral_ports=True,
    )
    async with Stack(settings) as running:
        await register_incident(running)
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def platform(stack: Stack) -> AsyncIterator[Platform]:
    """A client of the stack's public APIs."""
    async with Platform(addresses(stack)) as client:
        yield client
